from hypothesis import given
from hypothesis import strategies as st

from limelight.actors.choice import Choice
from limelight.actors.messages import Generated
from limelight.generation import FinishReason, ReasoningFormat, RepetitionDetection, SamplingParams
from limelight.parsing.reasoning import Opening, ReasoningSplitter
from limelight.step import SampledLogprobs
from limelight.testing import END, ByteVocabulary

VOCABULARY = ByteVocabulary()


THINK = ReasoningFormat("<think>", "</think>")


def run(token_ids, finish=FinishReason.LENGTH, *, per_message=1, logprobs=False, begins=None, **sampling):
    """All deltas of a choice that draws `token_ids`; ends with EOS if the last token is END.

    With `begins`, its reasoning is kept apart.
    """
    sampling = SamplingParams(max_tokens=None, logprobs=0 if logprobs else None, **sampling)
    choice, deltas = Choice(0, sampling, VOCABULARY), []
    if begins is not None:
        choice.expect_reasoning(ReasoningSplitter(THINK, begins))
    for start in range(0, len(token_ids), per_message):
        piece = tuple(token_ids[start : start + per_message])
        last = start + per_message >= len(token_ids)
        ended = last and piece[-1] == END
        deltas.append(
            choice.advance(
                Generated(
                    index=0,
                    token_ids=piece,
                    logprobs=tuple(SampledLogprobs(-1.0, (), ()) for _ in piece) if logprobs else None,
                    finish_reason=(FinishReason.STOP if ended else finish) if last else None,
                    stop_token_id=END if ended else None,
                    finish_details=None,
                    cached_tokens=0,
                )
            )
        )
        if choice.finished:
            break
    assert choice.finished
    return choice, deltas


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


def test_each_token_is_sent_in_its_own_turn_when_nothing_can_match():
    _, deltas = run(b"hello", stop="xyz")
    assert [delta.text for delta in deltas] == ["h", "e", "l", "l", "o"]
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_the_end_token_is_reported_but_not_shown():
    choice, deltas = run([*b"hi", END])
    assert text_of(deltas) == "hi"
    assert deltas[-1].stop_reason is None
    assert deltas[-1].token_ids == (END,)
    assert choice.num_tokens == 3


def test_a_stop_token_of_the_request_names_itself():
    _, deltas = run([*b"hi", END], stop_token_ids=[END])
    assert deltas[-1].stop_reason == END


def test_a_stop_string_cuts_the_text_and_names_itself():
    choice, deltas = run(b"one two three", stop=["two", "three"])
    assert text_of(deltas) == "one "
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "two")
    assert choice.num_tokens == len("one two")
    assert bytes(token for delta in deltas for token in delta.token_ids) == b"one "


def test_a_stop_string_is_kept_on_request():
    _, deltas = run(b"one two three", stop="two", include_stop_str_in_output=True)
    assert text_of(deltas) == "one two"


def test_a_pending_stop_prefix_is_flushed_at_the_end():
    _, deltas = run(b"UNO TR", stop="TRE")
    assert text_of(deltas) == "UNO TR"
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_stop_strings_do_not_count_before_min_tokens():
    _, deltas = run(b"ababab", stop="ab", min_tokens=3)
    assert text_of(deltas) == "abab"
    _, deltas = run(b"xxab", stop="x", min_tokens=2)
    assert text_of(deltas) == "xxab"


def test_held_tokens_and_logprobs_travel_with_their_text():
    _, deltas = run("aé!".encode(), logprobs=True)
    assert [delta.text for delta in deltas] == ["a", "", "é", "!"]
    assert [len(delta.logprobs) for delta in deltas] == [1, 0, 2, 1]
    entries = [entry for delta in deltas for entry in delta.logprobs]
    assert b"".join(entry.bytes for entry in entries).decode() == "aé!"


@given(
    st.text(alphabet="ab é😀", max_size=40),
    st.lists(st.text(alphabet="ab é", min_size=1, max_size=4), max_size=3),
    st.integers(1, 7),
    st.booleans(),
)
def test_any_split_into_messages_gives_the_same_text_tokens_and_logprobs(text, stops, per_message, include):
    token_ids = [*text.encode(), END]
    options = {"stop": stops or None, "include_stop_str_in_output": include, "logprobs": True}
    one_choice, one = run(token_ids, per_message=len(token_ids), **options)
    other_choice, other = run(token_ids, per_message=per_message, **options)
    assert text_of(one) == text_of(other)
    assert one_choice.num_tokens == other_choice.num_tokens
    assert [token for delta in one for token in delta.token_ids] == [t for delta in other for t in delta.token_ids]
    assert one[-1].stop_reason == other[-1].stop_reason
    for delta in other:
        assert len(delta.logprobs) == len(delta.token_ids)
    if not include:
        assert not any(stop in text_of(other) for stop in stops)


@given(st.binary(min_size=1, max_size=40), st.integers(1, 5))
def test_without_detokenizing_there_are_tokens_and_no_text(token_ids, per_message):
    _, deltas = run(token_ids, per_message=per_message, detokenize=False)
    assert text_of(deltas) == ""
    assert bytes(token_id for delta in deltas for token_id in delta.token_ids) == token_ids
    assert all(delta.token_ids for delta in deltas[:-1])


@given(st.integers(1, 9), st.sampled_from([None, "xyzzy", "caR"]))
def test_a_choice_that_repeats_itself_stops_with_what_it_has(per_message, stop):
    detection = RepetitionDetection(max_pattern_size=3, min_pattern_size=2, min_count=3)
    choice, deltas = run(b"say: carcarcarcarcar", per_message=per_message, repetition_detection=detection, stop=stop)
    assert text_of(deltas) == "say: carcarcar"
    assert choice.num_tokens == len("say: carcarcar")
    ended = deltas[-1]
    assert (ended.finish_reason, ended.stop_reason, ended.finish_details) == (FinishReason.STOP, None, "repetition")


def test_min_tokens_come_before_a_repetition_ends_a_choice():
    detection = RepetitionDetection(max_pattern_size=1, min_count=2)
    _, deltas = run(b"aaaaaa", repetition_detection=detection, min_tokens=4)
    assert text_of(deltas) == "aaaa"


def test_an_end_of_its_own_is_not_called_a_repetition():
    detection = RepetitionDetection(max_pattern_size=1, min_count=2)
    _, deltas = run([97, END], repetition_detection=detection)
    assert deltas[-1].finish_details is None
    _, deltas = run(b"abb", repetition_detection=detection)
    assert (deltas[-1].finish_reason, deltas[-1].finish_details) == (FinishReason.LENGTH, None)


def reasoning_of(deltas):
    return "".join(delta.reasoning for delta in deltas)


def test_reasoning_streams_apart_from_the_text_and_its_tokens_are_counted():
    written = b"<think>\nab\n</think>\n\nHi"
    choice, deltas = run([*written, END], begins=Opening.UNKNOWN)
    assert [(delta.reasoning, delta.text) for delta in deltas if delta.reasoning or delta.text] == [
        ("a", ""),
        ("b", ""),
        ("", "H"),
        ("", "i"),
    ]
    assert choice.num_reasoning_tokens == len(b"<think>\nab\n</think>")
    assert bytes(token for delta in deltas for token in delta.token_ids if token != END) == written


def test_reasoning_that_the_prompt_opened_or_closed():
    choice, deltas = run(b"ab</think>cd", begins=Opening.REASONING)
    assert (reasoning_of(deltas), text_of(deltas), choice.num_reasoning_tokens) == ("ab", "cd", 10)
    choice, deltas = run(b"<think>ab", begins=Opening.TEXT)
    assert (reasoning_of(deltas), text_of(deltas), choice.num_reasoning_tokens) == ("", "<think>ab", 0)
    choice, deltas = run(b"ab</thi", begins=Opening.REASONING)
    assert (reasoning_of(deltas), text_of(deltas), choice.num_reasoning_tokens) == ("ab</thi", "", 7)


def test_a_stop_string_ends_reasoning_too():
    choice, deltas = run(b"<think>one two", begins=Opening.UNKNOWN, stop="two")
    assert (reasoning_of(deltas), text_of(deltas)) == ("one ", "")
    assert deltas[-1].stop_reason == "two"
    assert choice.num_reasoning_tokens == len(b"<think>one two")


def test_special_tokens_are_shown_where_they_are_marks():
    _, deltas = run([*b"a", END, *b"b"], shown_special_tokens=frozenset({END}))
    assert text_of(deltas) == "a<|end|>b"


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "</thi", "\n", "a", "é", "stop", " "]), max_size=12),
    st.sampled_from(list(Opening)),
    st.sampled_from([None, ["stop"], ["</think>x", "\n\n"]]),
    st.integers(2, 9),
    st.booleans(),
)
def test_any_split_into_messages_gives_the_same_reasoning_and_counts(pieces, begins, stop, per_message, logprobs):
    token_ids = [*"".join(pieces).encode(), END]
    ways = []
    for size in (1, per_message, len(token_ids)):
        choice, deltas = run(token_ids, per_message=size, begins=begins, stop=stop, logprobs=logprobs)
        tokens = [token for delta in deltas for token in delta.token_ids]
        ways.append((reasoning_of(deltas), text_of(deltas), tokens, choice.num_reasoning_tokens, choice.num_tokens))
        text_has_begun = False
        for delta in deltas:
            assert not (text_has_begun and delta.reasoning), "reasoning comes before the text"
            text_has_begun = text_has_begun or delta.text != ""
    assert ways[0] == ways[1] == ways[2]
    assert ways[0][3] <= ways[0][4]
