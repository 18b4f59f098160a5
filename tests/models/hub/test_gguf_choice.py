"""Which GGUF file of a repository is meant, by names as people give them."""

import pytest

from limelight.errors import CheckpointError
from limelight.models.hub.gguf_choice import choose_gguf, gguf_models, label_of

GIB = 2**30


def sizes(*paths: str) -> dict[str, int]:
    return {path: (index + 1) * GIB for index, path in enumerate(paths)}


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("llama-3.2-1b.q8_0.gguf", "Q8_0"),
        ("Phi-3-mini-4k-instruct-q4.gguf", "Q4"),
        ("Qwen3-0.6B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Qwen2.5-7B-IQ2_XXS.gguf", "IQ2_XXS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("model-bf16-Q5_K_S-imat.gguf", "Q5_K_S"),
        ("BF16/Qwen3-00001-of-00002.gguf", "BF16"),
        ("Q8_0/Qwen3-Q4_0.gguf", "Q4_0"),
        ("model-f16.gguf", "F16"),
        ("Model-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("Q4model.gguf", None),
        ("model.gguf", None),
    ],
)
def test_the_label_of_a_file_is_its_quantisation(path: str, label: str | None) -> None:
    assert label_of(path) == label


def test_what_is_no_language_model_is_left_out() -> None:
    listed = sizes("m-Q4_0.gguf", "mmproj-F16.gguf", "m.mmproj-Q8_0.gguf", "imatrix.gguf", "m-imatrix.gguf", "a")
    assert [model.files for model in gguf_models(listed)] == [("m-Q4_0.gguf",)]


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        (["m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-Q4_K_S.gguf"], "m-Q4_K_M.gguf"),
        (["m-Q2_K.gguf", "m-Q4_0.gguf", "m-Q8_0.gguf"], "m-Q4_0.gguf"),
        (["m-Q8_0.gguf", "m-Q5_K_M.gguf", "m-Q2_K.gguf"], "m-Q5_K_M.gguf"),
        (["m-Q3_K_M.gguf", "m-Q2_K.gguf", "m-F16.gguf"], "m-Q3_K_M.gguf"),
        (["m-UD-Q4_K_XL.gguf", "m-Q8_0.gguf"], "m-UD-Q4_K_XL.gguf"),
        (["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
        (["whatever.gguf"], "whatever.gguf"),
    ],
)
def test_without_a_choice_it_is_the_nearest_to_four_bits(present: list[str], chosen: str) -> None:
    model, note = choose_gguf(sizes(*present), "maker/model", None)
    assert model.files == (chosen,)
    assert (note is None) == (len(present) == 1)


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        ("q8_0", "m-Q8_0.gguf"),
        ("Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("ud-q4_k_xl", "m-UD-Q4_K_XL.gguf"),
        ("m-Q8_0.gguf", "m-Q8_0.gguf"),
        ("M-q8_0.GGUF", "m-Q8_0.gguf"),
        ("old/m-Q4_0.gguf", "old/m-Q4_0.gguf"),
        ("m-Q4_0.gguf", "old/m-Q4_0.gguf"),
    ],
)
def test_a_choice_is_a_quantisation_or_a_file_in_any_case(selection: str, chosen: str) -> None:
    listed = sizes("m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf", "old/m-Q4_0.gguf")
    model, note = choose_gguf(listed, "maker/model", selection)
    assert (model.files, note) == ((chosen,), None)


@pytest.mark.parametrize("selection", ["Q4", "Q4_K", "K_M", "m-Q4_K_M", "../m-Q4_K_M.gguf"])
def test_nearly_is_not_there_and_the_list_says_what_is(selection: str) -> None:
    with pytest.raises(CheckpointError, match=r"it has Q4_K_M \(1\.00 GiB\), Q8_0 \(2\.00 GiB\)"):
        choose_gguf(sizes("m-Q4_K_M.gguf", "m-Q8_0.gguf"), "maker/model", selection)


@pytest.mark.parametrize("selection", ["Q4_K_M", None])
def test_two_models_of_one_quantisation_are_told_apart_by_file_only(selection: str | None) -> None:
    listed = sizes("small-Q4_K_M.gguf", "large-Q4_K_M.gguf")
    with pytest.raises(CheckpointError, match=r"may mean large-Q4_K_M\.gguf \(2.*small-.*name the file: maker/model:"):
        choose_gguf(listed, "maker/model", selection)
    assert choose_gguf(listed, "maker/model", "small-Q4_K_M.gguf")[0].files == ("small-Q4_K_M.gguf",)


def test_several_files_without_a_known_quantisation_need_a_name() -> None:
    with pytest.raises(CheckpointError, match=r"none of a usual quantisation; choose one of a\.gguf .*, b\.gguf"):
        choose_gguf(sizes("a.gguf", "b.gguf"), "maker/model", None)


def test_parts_are_one_model_in_their_order() -> None:
    listed = sizes(*(f"m-Q4_K_M-0000{number}-of-00003.gguf" for number in (3, 1, 2)))
    model, note = choose_gguf(listed, "maker/model", None)
    assert model.files == tuple(f"m-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3))
    assert (model.num_bytes, note) == (6 * GIB, None)
    assert choose_gguf(listed, "maker/model", "m-Q4_K_M-00002-of-00003.gguf")[0] == model


def test_a_missing_part_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"lacks 1 of the 3 parts of .*: m-Q8_0-00002-of-00003\.gguf"):
        choose_gguf(sizes("m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"), "maker/model", "Q8_0")


def test_a_choice_among_no_gguf_files_is_refused() -> None:
    with pytest.raises(CheckpointError, match="has no GGUF file to choose 'Q4_K_M' from; leave :Q4_K_M out"):
        choose_gguf(sizes("model.safetensors"), "maker/model", "Q4_K_M")


def test_a_long_list_is_cut() -> None:
    listed = sizes(*(f"m{number}-Q8_0.gguf" for number in range(100)))
    with pytest.raises(CheckpointError, match="and 60 more") as caught:
        choose_gguf(listed, "maker/model", "Q4_0")
    assert len(str(caught.value)) < 2000
