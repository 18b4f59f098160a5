// Lines of tables, as GitHub writes them.

/** The cells of a row, trimmed. `\|` is a bar inside a cell. */
export function cellsOf(line) {
  const row = line.trim();
  const cells = [];
  let cell = "";
  let from = row[0] === "|" ? 1 : 0;
  for (let at = from; at < row.length; at += 1) {
    if (row[at] === "\\" && row[at + 1] === "|") {
      cell += row.slice(from, at);
      at += 1;
      from = at;
    } else if (row[at] === "|") {
      cells.push((cell + row.slice(from, at)).trim());
      cell = "";
      from = at + 1;
    }
  }
  if (cell !== "" || from < row.length) cells.push((cell + row.slice(from)).trim());
  return cells;
}

/** The alignments ("", "left", "center", "right") that a delimiter row such as `|:--|--:|` sets; null for another line. */
export function alignmentsOf(line) {
  if (!line.includes("|") || !/^[-|: \t]+$/.test(line)) return null;
  const cells = cellsOf(line);
  if (cells.length === 0 || !cells.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return cells.map((cell) => {
    if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "right";
    return cell.startsWith(":") ? "left" : "";
  });
}
