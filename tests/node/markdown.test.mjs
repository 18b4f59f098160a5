// Markdown of answers: what it becomes, that it is the same however it streams in, that nothing else gets onto the page, and its cost.
import assert from "node:assert/strict";
import { test } from "node:test";
import { elements, emptyElement, html, shownText } from "./page.mjs";
import { HOSTILE } from "./hostile_markdown.mjs";

const { renderMarkdown, StreamingMarkdown } = await import("../../limelight/http/ui/markdown.js");

const rendered = (text) => html(renderMarkdown(text));
const LINK = 'rel="noopener noreferrer" target="_blank"';

const EXAMPLES = {
  paragraphs: [
    ["one\n\ntwo\nlines", "<p>one</p><p>two\nlines</p>"],
    ["  one\n   two", "<p>one\ntwo</p>"],
    ["a  \nb\\\nc", "<p>a<br>b<br>c</p>"],
    ["a\r\nb\rc", "<p>a\nb\nc</p>"],
    ["", ""],
  ],
  headings: [
    ["# one\n###### six ##\n####### seven", "<h1>one</h1><h6>six</h6><p>####### seven</p>"],
    ["#none\n\n# #\n# a\\#", "<p>#none</p><h1></h1><h1>a#</h1>"],
    ["One\ntwo\n===\nThree\n---", "<h1>One\ntwo</h1><h2>Three</h2>"],
  ],
  rules: [["***\n- - -\n__ _", "<hr><hr><hr>"], ["--", "<p>--</p>"]],
  emphasis: [
    ["*a* _b_ **c** __d__ ***e***", "<p><em>a</em> <em>b</em> <strong>c</strong> <strong>d</strong> <em><strong>e</strong></em></p>"],
    ["**a *b* c** *a **b***", "<p><strong>a <em>b</em> c</strong> <em>a <strong>b</strong></em></p>"],
    ["snake_case_name 2 * 3 * 4 in*side*word", "<p>snake_case_name 2 * 3 * 4 in<em>side</em>word</p>"],
    ["**open *and", "<p>**open *and</p>"],
    ["*foo**bar*", "<p><em>foo**bar</em></p>"],
    ["~~gone~~ ~5 to ~10", "<p><del>gone</del> ~5 to ~10</p>"],
    ["**강조(emphasis)**입니다", "<p><strong>강조(emphasis)</strong>입니다</p>"],
  ],
  code: [
    ["`a*b*` ``c`d`` ` e `", "<p><code>a*b*</code> <code>c`d</code> <code>e</code></p>"],
    ["`open ``and`` <b>", "<p>`open <code>and</code> &lt;b&gt;</p>"],
    ["```py x\n\tone\n\n *two*\n```\nend", '<div class="code-block"><pre><code class="language-py">\tone\n\n *two*</code></pre></div><p>end</p>'],
    ["~~~\n```\n~~~~", '<div class="code-block"><pre><code>```</code></pre></div>'],
    ["```\nopen", '<div class="code-block"><pre><code>open</code></pre></div>'],
    ["    a\n\n      b\n\n", '<div class="code-block"><pre><code>a\n\n  b</code></pre></div>'],
    ["- ```\n  a\n  ```", '<ul><li><div class="code-block"><pre><code>a</code></pre></div></li></ul>'],
  ],
  lists: [
    ["- a\n- b\n  - c\n* d", "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li></ul><ul><li><p>d</p></li></ul>"],
    ["3. a\n4. b\n1) c", '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol><ol><li><p>c</p></li></ol>'],
    ["- a\n\n- b\n\n  c", '<ul class="loose"><li><p>a</p></li><li><p>b</p><p>c</p></li></ul>'],
    ["- a\nlazy\n\nout", "<ul><li><p>a\nlazy</p></li></ul><p>out</p>"],
    ["text\n- a\n\ntext\n2. no", "<p>text</p><ul><li><p>a</p></li></ul><p>text\n2. no</p>"],
    ["-\ta\n\n\tb", '<ul class="loose"><li><p>a</p><p>b</p></li></ul>'],
    ["- [ ] a\n- [x] b\n- [y] c", '<ul><li class="task"><p><input aria-label="not done" disabled="" type="checkbox">a</p></li>'
      + '<li class="task"><p><input aria-label="done" checked="" disabled="" type="checkbox">b</p></li><li><p>[y] c</p></li></ul>'],
  ],
  quotes: [
    ["> a\nb\n> > c\n\nd", "<blockquote><p>a\nb</p><blockquote><p>c</p></blockquote></blockquote><p>d</p>"],
    ["> - a\n> - b", "<blockquote><ul><li><p>a</p></li><li><p>b</p></li></ul></blockquote>"],
  ],
  tables: [
    ["t\n| a | b |\n|:-:|--:|\n| 1 | `x\\|y` |\n| 2\n\nend", '<p>t</p><div class="table"><table><thead><tr><th class="align-center" scope="col">a</th>'
      + '<th class="align-right" scope="col">b</th></tr></thead><tbody><tr><td class="align-center">1</td><td class="align-right"><code>x|y</code></td></tr>'
      + '<tr><td class="align-center">2</td></tr></tbody></table></div><p>end</p>'],
    ["a | b\n- | -\nc | d | e", '<div class="table"><table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead>'
      + "<tbody><tr><td>c</td><td>d | e</td></tr></tbody></table></div>"],
    ["| a | b |\n|---|", "<p>| a | b |\n|---|</p>"],
  ],
  links: [
    ["[a *b*](https://c.d/(e) \"f\")", `<p><a href="https://c.d/(e)" ${LINK} title="f">a <em>b</em></a></p>`],
    ["<https://a.b> <me@a.b> see https://c.d/e).", `<p><a href="https://a.b" ${LINK}>https://a.b</a> <a href="mailto:me@a.b" ${LINK}>me@a.b</a> see `
      + `<a href="https://c.d/e" ${LINK}>https://c.d/e</a>).</p>`],
    ["**https://a.b** https://a.b에서", `<p><strong><a href="https://a.b" ${LINK}>https://a.b</a></strong> <a href="https://a.b" ${LINK}>https://a.b</a>에서</p>`],
    ["![cat](https://a.b/c.png)", `<p><a href="https://a.b/c.png" ${LINK}>cat</a></p>`],
    ["[![b](http://i.j)](http://k.l)", `<p><a href="http://k.l" ${LINK}><span>b</span></a></p>`],
    ["[a](/b) [c] [d][e]", "<p>[a](/b) [c] [d][e]</p>"],
    ["[a](<http://b c>)", `<p><a href="http://b%20c" ${LINK}>a</a></p>`],
  ],
  escapes: [
    ["\\*a\\* \\q &amp; &copy; &#65; &#x1F600; &nope; &#0;", "<p>*a* \\q &amp; © A 😀 &amp;nope; \ufffd</p>"],
    ["&lt;b&gt; <b>c</b> <!-- d -->", "<p>&lt;b&gt; &lt;b&gt;c&lt;/b&gt; &lt;!-- d --&gt;</p>"],
    ["a\u202eb\u0007c\0", "<p>a\u202eb\u0007c\ufffd</p>"],
  ],
  formulas: [
    ["$x_1*2*$ costs $5 and $10, \\(a_b\\)", '<p><code class="math">$x_1*2*$</code> costs $5 and $10, <code class="math">\\(a_b\\)</code></p>'],
    ["$$\na\n- b\n$$\nc", '<pre class="math"><code>$$\na\n- b\n$$</code></pre><p>c</p>'],
    ["\\[ x \\] $$y$$", '<p><code class="math">\\[ x \\]</code> <code class="math">$$y$$</code></p>'],
  ],
};

for (const [name, examples] of Object.entries(EXAMPLES)) {
  test(`${name} become the elements that CommonMark says`, () => {
    for (const [text, expected] of examples) assert.equal(rendered(text), expected, JSON.stringify(text));
  });
}

test("addresses of other schemes are never linked to", () => {
  const addresses = ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "&#106;avascript:alert(1)", "java\\script:x", "data:text/html,x", "vbscript:x",
    "\u0001javascript:x", "//a.b", "file:///etc/passwd", "http:a", "<javascript:x>", "blob:a"];
  for (const address of addresses) {
    for (const text of [`[a](${address})`, `![a](${address})`, `<${address}>`]) {
      for (const node of elements(renderMarkdown(text))) assert.notEqual(node.tag, "a", text);
    }
  }
});

// ---- random texts

const PIECES = ["*", "**", "_", "~~", "`", "``", "```\n", "~~~\n", "[", "![", "](", "](https://a.b)", ")", "<", "<http://c>", ">", "> ", "- ", "* ",
  "1. ", "2) ", "- [x] ", "# ", "===", "---", "|", "| a | b |\n|---|:-:|\n", "|-|", "$", "$$", "\\", "\\(", "\\)", "\\[", "&amp;", "&", "!", ":", "https://d.e/f",
  " ", "  ", "    ", "\t", "\n", "\n", "\n", "\n\n", "\r\n", "\r", "word", "한글", "😀", "7", ".", "(", "\u202e", "javascript:", "<b>", "\"", "'"];

function chanceOf(seed) {
  let state = seed;
  return (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
}

const randomText = (chance) => Array.from({ length: 1 + chance(40) }, () => PIECES[chance(PIECES.length)]).join("");

const ALLOWED = {
  a: ["href", "rel", "target", "title"], blockquote: [], br: [], button: ["type", "class"], code: ["class"], del: [], div: ["class"], em: [],
  h1: [], h2: [], h3: [], h4: [], h5: [], h6: [], hr: [], input: ["type", "disabled", "checked", "aria-label"], li: ["class"],
  ol: ["class", "start"], p: [], pre: ["class"], span: ["class", "role"], strong: [], table: [], tbody: [], td: ["class"],
  th: ["class", "scope"], thead: [], tr: [], ul: ["class"],
};

function checkElements(node, text) {
  for (const element of elements(node)) {
    assert.ok(Object.hasOwn(ALLOWED, element.tag), `${element.tag} of ${JSON.stringify(text)}`);
    for (const [name, value] of element.attributes) {
      assert.ok(ALLOWED[element.tag].includes(name), `${name} of ${element.tag} of ${JSON.stringify(text)}`);
      if (name === "href") assert.match(value, /^(https?:\/\/|mailto:)[^\s\0-\x1f]+$/i);
    }
    if (element.attributes.has("href")) assert.equal(element.attributes.get("rel"), "noopener noreferrer");
  }
}

test("a text that streamed in is the same as the whole one, however it was cut, and nothing else is ever on the page", () => {
  for (let seed = 0; seed < 2000; seed += 1) {
    const chance = chanceOf(seed);
    const text = randomText(chance);
    const element = emptyElement();
    const streaming = new StreamingMarkdown(element);
    for (let end = chance(5); end < text.length; end += 1 + chance(12)) {
      streaming.update(text.slice(0, end));
      checkElements(element, text.slice(0, end));
    }
    if (chance(2) === 0) streaming.update(text);
    streaming.finish(text);
    checkElements(element, text);
    assert.equal(html(element), rendered(text), `${seed}: ${JSON.stringify(text)}`);
  }
});

test("a long paragraph that streamed in is the same as the whole one", () => {
  const words = ["one", "two", "**bold**", "`code`", "a_b", "*em and*", "한글", "https://a.b/c", "[l](http://d.e)", "*", "`", "$5", "x\ny", "three  \nfour"];
  for (let seed = 0; seed < 12; seed += 1) {
    const chance = chanceOf(seed);
    const rare = seed % 3 === 0 ? words.length : words.length - 5;
    const text = Array.from({ length: 300 }, () => words[chance(rare)]).join(" ");
    const element = emptyElement();
    const streaming = new StreamingMarkdown(element);
    for (let end = 0; end < text.length; end += 1 + chance(60)) {
      streaming.update(text.slice(0, end));
      if (chance(10) !== 0) continue;
      const fresh = emptyElement();
      new StreamingMarkdown(fresh).update(text.slice(0, end));
      assert.equal(html(element), html(fresh), `${seed} at ${end}`);
    }
    streaming.finish(text);
    assert.equal(html(element), rendered(text), seed);
  }
});

test("another text replaces the one before, and a finished text may go on", () => {
  const element = emptyElement();
  const streaming = new StreamingMarkdown(element);
  for (const text of ["# one\n\ntwo **three", "# one\n\ntwo **three**\n\n- four", "five", ""]) {
    streaming.update(text);
    streaming.finish();
    assert.equal(html(element), rendered(text));
  }
});

test("every letter of a text is shown, in its order", () => {
  const signs = PIECES.filter((piece) => !/[a-z0-9]|```|~~~/i.test(piece));
  for (let seed = 0; seed < 3000; seed += 1) {
    const chance = chanceOf(seed);
    let text = "";
    let letters = "";
    for (let count = chance(30); count >= 0; count -= 1) {
      const letter = String.fromCharCode(97 + chance(26));
      letters += letter;
      text += signs[chance(signs.length)] + letter + signs[chance(signs.length)];
    }
    assert.equal(shownText(renderMarkdown(text)).replace(/[^a-z]/g, ""), letters, JSON.stringify(text));
  }
});

// ---- what a reader sees while it is written

const ANSWER = `# Title

Some **bold words**, *others* and \`code with * in it\`, a [link to a page](https://example.org/a/long/address) and more:
- one
- two with **bold**
  1. nested
  2. again

- [x] done

Here is a table:
| name | value |
|:-----|------:|
| one  | **1** |

\`\`\`python
def f(x):
    return x - 1
\`\`\`

> A quote.

---
The end: \\(x^2\\).
`;

test("what is shown of an unfinished text only grows: no half of a sign comes and goes", () => {
  const whole = shownText(renderMarkdown(ANSWER));
  const element = emptyElement();
  const streaming = new StreamingMarkdown(element);
  for (let end = 1; end <= ANSWER.length; end += 1) {
    streaming.update(ANSWER.slice(0, end));
    const shown = shownText(element).replace(/\s+$/, "");
    const isInBrackets = /\[[^\]\n]*\]?$|\[x?$/.test(ANSWER.slice(0, end));
    if (!isInBrackets) assert.ok(whole.startsWith(shown), `after ${JSON.stringify(ANSWER.slice(0, end).slice(-30))}: ${JSON.stringify(shown.slice(-40))}`);
  }
});

test("what is open is shown as what it is going to be", () => {
  const cases = [
    ["a **b", "<p>a <strong>b</strong></p>"],
    ["a **b*", "<p>a <strong>b</strong></p>"],
    ["a `b", "<p>a <code>b</code></p>"],
    ["[a](https://b", "<p><a>a</a></p>"],
    ["[a](javascript:", "<p>[a](javascript:</p>"],
    ["```js\nx", '<div class="code-block"><pre><code class="language-js">x</code></pre></div>'],
    ["```js\nx\n``", '<div class="code-block"><pre><code class="language-js">x</code></pre></div>'],
    ["a\n-", "<p>a</p>"],
    ["| a | b", '<div class="table"><table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead></table></div>'],
    ["| a | b |\n|--", '<div class="table"><table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead></table></div>'],
  ];
  for (const [text, expected] of cases) {
    const element = emptyElement();
    new StreamingMarkdown(element).update(text);
    assert.equal(html(element), expected, JSON.stringify(text));
  }
});

test("elements of finished blocks are kept, and text that grows is appended to", () => {
  const element = emptyElement();
  const streaming = new StreamingMarkdown(element);
  streaming.update("# one\n\ntwo **three** four\n\n- five\n- six **seven** eig");
  const [heading, paragraph, list] = element.childNodes;
  const growing = list.childNodes[1].childNodes[0].childNodes[2];
  const kept = [heading, paragraph, ...paragraph.childNodes, list, list.childNodes[0], growing];
  streaming.update("# one\n\ntwo **three** four\n\n- five\n- six **seven** eight\n\nnine");
  assert.deepEqual(kept.map((node) => node.parentNode !== null), kept.map(() => true));
  assert.equal(element.childNodes[2], list);
  assert.equal(growing.data, " eight");
});

// ---- cost

/** The least processor time of two runs, in milliseconds. */
function cost(run) {
  let least = Infinity;
  for (let round = 0; round < 2; round += 1) {
    const start = process.cpuUsage();
    run();
    const { user, system } = process.cpuUsage(start);
    least = Math.min(least, (user + system) / 1000);
  }
  return least;
}

test("hostile texts take time in proportion to their length", { timeout: 120_000 }, () => {
  for (const [name, make] of Object.entries(HOSTILE)) {
    const [short, long] = [make(5_000), make(40_000)];
    const once = cost(() => renderMarkdown(short));
    const eight = cost(() => renderMarkdown(long));
    checkDepth(renderMarkdown(long));
    assert.ok(eight < 26 * once + 150, `${name}: ${once} ms, and ${eight} ms for eight times the text`);
  }
});

function checkDepth(root) {
  let level = [root];
  for (let depth = 0; level.length > 0; depth += 1) {
    assert.ok(depth < 400);
    level = level.flatMap((node) => node.childNodes);
  }
}

test("a sign that nothing ever closes makes a long paragraph hardly slower while it streams in", { timeout: 120_000 }, () => {
  const streamed = (text) => cost(() => {
    const streaming = new StreamingMarkdown(emptyElement());
    for (let end = 0; end < text.length; end += 4) streaming.update(text.slice(0, end));
    streaming.finish(text);
  });
  const words = "word and more words ".repeat(2_500);
  const without = streamed(words);
  for (const sign of ["*", "**", "$x", "[", "`", "``", "<", "~~"]) {
    const element = emptyElement();
    const text = `a ${sign}${words}`;
    const took = streamed(text);
    assert.ok(took < 10 * without + 150, `${sign}: ${took} ms, and ${without} ms without it`);
    const streaming = new StreamingMarkdown(element);
    for (let end = 0; end < text.length; end += 400) streaming.update(text.slice(0, end));
    streaming.finish(text);
    assert.equal(element.textContent, renderMarkdown(text).textContent);
  }
});

test("an answer that streams in makes hardly more nodes than it ends with", () => {
  const { createElement } = document;
  let count = 0;
  document.createElement = (tag) => {
    count += 1;
    return createElement(tag);
  };
  try {
    for (const text of [ANSWER.repeat(50), "some **bold** words and `code` here, ".repeat(300), "- item **bold**\n".repeat(300), "|a|b|\n|-|-|\n" + "|c|**d**|\n".repeat(300)]) {
      count = 0;
      renderMarkdown(text);
      const least = count;
      count = 0;
      const streaming = new StreamingMarkdown(emptyElement());
      for (let end = 0; end < text.length; end += 4) streaming.update(text.slice(0, end));
      streaming.finish(text);
      assert.ok(count < 1.5 * least, `${count} elements, ${least} at the end`);
    }
  } finally {
    document.createElement = createElement;
  }
});
