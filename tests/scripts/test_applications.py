"""The data, nets and trainings on text and on ratings: private lookups' two applications, BERT-tiny and the GPT."""

from __future__ import annotations

import gzip
import lzma
import math
from pathlib import Path

import pytest
import torch

from hummingbird.errors import InputError
from models import load_checkpoint
from models.bert import Bert, bert_tiny
from models.gpt import Gpt, gpt2, gpt_small
from models.lstm import WordLSTM
from models.pieces import Pieces
from models.recommender import Recommender
from scripts.train import bert, gpt, lstm, recommender
from scripts.train.gpt import surprise
from scripts.train.lstm import perplexity, windows
from scripts.train.movielens_data import HISTORY, load_questions
from scripts.train.recommender import auc
from scripts.train.text_data import HIDDEN, LENGTH, choices, hidden, load_text, pieced, questions, vectors
from tests.support.data import data_folder
from tests.support.paths import ROOT

SPLITS = ("train", "validation", "test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small data sets in the formats of the real ones."""
    texts = tmp_path / "wikitext-2"
    texts.mkdir()
    lines = {"train": " a b a c \n a b \n" * 30, "valid": " a b a c \n a b \n" * 12, "test": " b b a \n" * 12}
    for name, text in lines.items():
        (texts / f"{name}.txt.xz").write_bytes(lzma.compress(text.encode()))
    movies = tmp_path / "ml-latest-small"
    movies.mkdir()
    ratings = [
        (user, movie, 0.5 + (7 * user + movie) % 10 / 2, 100 - movie)
        for user in range(1, 21)
        for movie in (3, 9, 27, 81, 5, 40, 6)
    ]
    tables = {
        "movies": ["movieId,title,genres", *(f'{movie},"A, B",X' for movie in (81, 3, 9, 27, 5, 40, 6, 7))],
        "ratings": ["userId,movieId,rating,timestamp", *(",".join(map(str, rating)) for rating in ratings)],
    }
    for name, rows in tables.items():
        (movies / f"{name}.csv.gz").write_bytes(gzip.compress("\n".join([*rows, ""]).encode()))
    return tmp_path


def test_texts_are_numbered_by_falling_frequency(folder: Path) -> None:
    text = load_text(folder)
    assert text.words == ("a", "b", "<eos>", "c") and text.counts == (90, 60, 60, 30)
    assert text.numbers["train"][:7].tolist() == [0, 1, 0, 3, 2, 0, 1]
    assert text.numbers["test"][:4].tolist() == [1, 1, 0, 2] and len(text.numbers["validation"]) == 96
    assert set(load_text(folder, ("test",)).numbers) == {"test"}


def test_questions_have_the_latest_history_first(folder: Path) -> None:
    questions = [load_questions(split, folder) for split in SPLITS]
    assert [len(asked.likes) // 2 for asked in questions] == [14, 2, 4]  # users, each with two questions
    for asked in questions:
        assert asked.movies == 8 and asked.wanted.shape == (len(asked.likes), 1 + HISTORY)
        # By time, the latest number first: 81, 40, 27, 9, 6 ask nothing, then 5 and 3; movies are numbered by id.
        assert asked.wanted[0, :7].tolist() == [2, 3, 5, 6, 7, 8, 0]
        assert asked.wanted[1, :8].tolist() == [1, 2, 3, 5, 6, 7, 8, 0]
        assert (asked.weights[asked.wanted[:, 1:] == 0] == 0).all()
        # Movie 5, the latest of the second history, has a rating of so many halves above 0.5; 3 then has two fewer.
        halves = (2 * (3.5 + 5 * asked.weights[1::2, 0]) - 1).round().long()
        assert asked.likes[1::2].tolist() == (halves.sub(2) % 10 >= 7).long().tolist()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "wikitext-2/valid.txt.xz").unlink(), "no file wikitext-2/valid.txt.xz"),
        (lambda folder: (folder / "wikitext-2/test.txt.xz").write_bytes(b"nothing"), "test.txt.xz is damaged"),
        (
            lambda folder: (folder / "wikitext-2/test.txt.xz").write_bytes(lzma.compress(b"a zebra")),
            "'zebra' is not in",
        ),
        (lambda folder: (folder / "ml-latest-small/movies.csv.gz").unlink(), "no file ml-latest-small/movies.csv.gz"),
        (
            lambda folder: (folder / "ml-latest-small/ratings.csv.gz").write_bytes(gzip.compress(b"h\n1,2\n1,2,3,4\n")),
            "no MovieLens table",
        ),
        (
            lambda folder: (folder / "ml-latest-small/ratings.csv.gz").write_bytes(gzip.compress(b"h\n1,999,3,4\n")),
            "movie 999 is rated but not listed",
        ),
        (
            lambda folder: (folder / "ml-latest-small/ratings.csv.gz").write_bytes(b"\x1f\x8bno"),
            "ratings.csv.gz is damaged",
        ),
    ],
)
def test_missing_and_damaged_files_are_named(folder: Path, spoil: object, message: str) -> None:
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        load_text(folder)
        load_questions("test", folder)


def test_no_folder_and_no_such_split(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delenv("HUMMINGBIRD_DATA", raising=False)
    with pytest.raises(InputError, match="none is given"):
        load_text()
    for load in (lambda: load_text(folder, ("dev",)), lambda: load_questions("dev", folder)):
        with pytest.raises(InputError, match="no split 'dev'"):
            load()


@pytest.mark.slow
def test_wikitext_has_the_published_counts() -> None:
    text = load_text(data_folder("wikitext-2"))
    assert [len(text.numbers[split]) for split in SPLITS] == [2088628, 217646, 245569] and len(text.words) == 33278
    assert text.words[:5] == ("the", ",", ".", "of", "<unk>") and sum(text.counts) == 2088628


@pytest.mark.slow
def test_movielens_asks_most_ratings_and_splits_users() -> None:
    data = data_folder("ml-latest-small")
    asked = {split: load_questions(split, data) for split in SPLITS}
    assert sum(len(questions.likes) for questions in asked.values()) == 100836 - 5 * 610  # but each user's first five
    assert {questions.movies for questions in asked.values()} == {9742}
    assert all(0.4 < float(questions.likes.double().mean()) < 0.6 for questions in asked.values())


@pytest.mark.parametrize("cutoffs", [(), (3,), (2, 5, 9), (4, 100)])
def test_probabilities_of_all_words_add_up_to_one(cutoffs: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net = WordLSTM(12, 8, 1, 0.0, cutoffs).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
        hidden, _ = net(torch.randint(12, (3, 2)))
        every = torch.stack([net.log_probability(hidden.flatten(0, 1), torch.full((6,), word)) for word in range(12)])
    assert torch.allclose(every.exp().sum(0), torch.ones(6), atol=1e-5)  # float32: 12 terms of relative error 2^-24 e^5


def test_a_net_that_knows_nothing_has_the_perplexity_of_its_classes() -> None:
    net = WordLSTM(10, 4, 1, 0.0, (4, 6))
    for parameter in net.parameters():
        torch.nn.init.zeros_(parameter)
    text = torch.tensor([0, 3, 4, 9] * 32)
    # Heads: 4 words and 2 groups, 1/6 each; within groups of 2 and of 4 words: 1/12 and 1/24.
    expected = {0: 6.0, 3: 6.0, 4: 12.0, 9: 24.0}
    side = text.view(16, -1).t()
    mean = sum(math.log(expected[int(word)]) for word in side[1:].flatten()) / side[1:].numel()
    assert perplexity(net, text) == pytest.approx(math.exp(mean), rel=1e-6)


def test_windows_are_all_of_the_text_once() -> None:
    columns = torch.arange(24).view(12, 2)
    parts = list(windows(columns, 5))
    assert torch.equal(torch.cat([words for words, _ in parts]), columns[:-1])
    assert torch.equal(torch.cat([following for _, following in parts]), columns[1:])
    assert [len(words) for words, _ in parts] == [5, 5, 1]


def test_lookups_can_come_from_elsewhere_and_wrong_cutoffs_are_refused() -> None:
    torch.manual_seed(0)
    net = WordLSTM(12, 8).eval()
    words = torch.randint(12, (5, 2))
    own, other = net(words)[0], net(words, lookup=lambda asked: net.words(asked) * (asked[..., None] != 3))[0]
    assert torch.equal(own[0, words[0] != 3], other[0, words[0] != 3]) and not torch.equal(own, other)
    for cutoffs in ((0, 4), (5, 3), (4, 4)):
        with pytest.raises(ValueError, match="cutoffs rise"):
            WordLSTM(12, 8, cutoffs=cutoffs)


def test_the_recommender_ignores_padding_and_sums_by_weight() -> None:
    torch.manual_seed(0)
    net = Recommender(20).eval()
    wanted, weights = torch.tensor([[7, 3, 12, 0]]), torch.tensor([[1.0, -0.5, 0.0]])
    short = net(wanted[:, :3], weights[:, :2])
    table = net.items.weight
    pooled = torch.cat([table[7], table[3] - 0.5 * table[12]])[None]
    assert torch.allclose(net(wanted, weights), short, atol=1e-6) and torch.allclose(net.mlp(pooled), short, atol=1e-6)
    assert [layer.out_features for layer in net.mlp if isinstance(layer, torch.nn.Linear)] == [200, 80, 2]


def test_auc_is_the_share_of_ordered_pairs() -> None:
    torch.manual_seed(0)
    values, likes = torch.randint(8, (60,)).float(), torch.randint(2, (60,))
    good, bad = values[likes == 1], values[likes == 0]
    pairs = (good[:, None] > bad).double() + (good[:, None] == bad).double() / 2
    assert auc(values, likes) == pytest.approx(float(pairs.mean()), abs=1e-12)
    assert auc(likes.float(), likes) == 1.0
    with pytest.raises(InputError, match="AUC needs both"):
        auc(values, torch.zeros(60, dtype=torch.int64))


def test_a_language_model_learns_and_resumes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--data", str(folder), "--epochs", "2", "--batch", "4", "--window", "15", "--dim", "16", "--rate", "0.05"]
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"
    assert lstm.main([*words, "--out", str(whole)]) == 0
    said = capsys.readouterr().out
    assert f"saved {whole} sha256 " in said
    assert float(said.split("validation perplexity ")[1].split()[0]) < 3.95  # 4 words; their frequencies make it 3.75
    real = lstm.Training.run_epoch

    def one_epoch(training: lstm.Training, *rest: object) -> float:
        if training.epoch == 1:
            raise KeyboardInterrupt
        return real(training, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(lstm.Training, "run_epoch", one_epoch)
        assert lstm.main([*words, "--out", str(parts)]) == 130
    assert lstm.main([*words, "--out", str(parts)]) == 1 and "interrupted training" in capsys.readouterr().err
    assert lstm.main([*words, "--out", str(parts), "--resume"]) == 0
    assert whole.read_bytes() == parts.read_bytes()
    load_checkpoint(whole, WordLSTM(4, 16))


def test_a_recommender_is_trained_and_saved(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", str(folder), "--batch", "8", "--out", str(tmp_path / "net.pt")]
    assert recommender.main([*words, "--epochs", "2"]) == 0
    assert "test AUC " in capsys.readouterr().out
    load_checkpoint(tmp_path / "net.pt", Recommender(8))
    assert recommender.main([*words, "--epochs", "0"]) == 1
    assert "cannot be meant" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", [["--epochs", "0"], ["--rate", "2"], ["--dropout", "1"], ["--dim", "0"], ["--resume"]]
)
def test_wrong_options_of_the_training_are_one_error(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    assert lstm.main(["--data", str(folder), "--out", str(tmp_path / "net.pt"), *option]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert not list(tmp_path.glob("net.pt*"))


def test_questions_hide_frequent_words_in_the_middle(folder: Path) -> None:
    text = load_text(folder)
    assert choices(text) == ("a", "b", "c")  # but no end of a line
    rows, answers = questions(text, "test")  # b b a <eos>, again and again
    numbers = text.numbers["test"]
    middles = range(LENGTH // 2, len(numbers) - LENGTH // 2 + 1)
    asked = [place for place in middles if numbers[place] != text.words.index("<eos>")]
    assert answers.tolist() == [[0, 1, -1, 2][int(numbers[place])] for place in asked]
    for row, place in zip(rows, asked, strict=True):
        assert torch.equal(row, numbers[place - LENGTH // 2 :][:LENGTH])
    unseen = hidden(rows)
    assert (unseen != rows).nonzero()[:, 1].unique().tolist() == [LENGTH // 2]
    assert set(unseen[:, LENGTH // 2].tolist()) == {HIDDEN}


def test_bert_s_answer_depends_on_the_words_around_and_not_on_the_hidden_one(folder: Path) -> None:
    torch.manual_seed(0)
    net = bert_tiny().eval()
    rows = torch.randint(4000, (2, LENGTH))
    for place, same in ((LENGTH // 2, True), (0, False), (LENGTH - 1, False)):
        other = rows.index_fill(1, torch.tensor([place]), 5)
        assert torch.equal(net(net.words(hidden(rows))), net(net.words(hidden(other)))) is same
    with pytest.raises(ValueError, match="heads divide the width"):
        Bert(words=9, choices=2, length=4, width=9, heads=2, layers=1)


@pytest.mark.slow
def test_bert_is_trained_and_judged_by_its_answers(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "net.pt"
    words = ["--data", str(folder), "--epochs", "20", "--batch", "4", "--rate", "0.005", "--out", str(place)]
    assert bert.main(words) == 0
    said = capsys.readouterr().out
    assert float(said.split("validation accuracy ")[1].split()[0]) >= 50  # so often "a" is right; untrained, 33
    x, right = vectors(str(place), count=4, data=folder)
    net = load_checkpoint(place, bert_tiny()).eval()
    assert x.shape == (4, LENGTH, 128) and torch.equal(x[:, LENGTH // 2], net.words.weight[HIDDEN].expand(4, -1))
    rows, answers = questions(load_text(folder), "test")
    assert right.tolist() == [int(answers[len(answers) * part // 4]) for part in range(4)] and not x.requires_grad
    with torch.no_grad():
        found = net(net.words(hidden(rows))).argmax(1) == answers
    assert f"test accuracy {100 * float(found.double().mean()):.2f} % of {len(answers)} hidden words" in said
    assert bert.main([*words, "--batch", "0"]) == 1


def test_a_gpt_s_places_read_the_places_before_them_alone() -> None:
    torch.manual_seed(0)
    net = gpt_small().eval()
    numbers = torch.randint(4096, (2, 40))
    other = numbers.index_fill(1, torch.tensor([25]), 7)
    with torch.no_grad():
        one, two, short = net(net.words(numbers)), net(net.words(other)), net(net.words(numbers[:, :10]))
    assert torch.equal(one[:, :25], two[:, :25]) and not torch.equal(one[:, 25:], two[:, 25:])
    assert torch.allclose(one[:, :10], short, atol=1e-5)  # float32, sums of 192 products
    with pytest.raises(ValueError, match="heads divide the width"):
        Gpt(words=300, places=4, width=9, heads=2, layers=1)
    with torch.device("meta"):
        whole = gpt2()
    assert sum(part.numel() for part in whole.parameters()) == 124_439_808  # GPT-2 small's, by its authors' release


@pytest.mark.parametrize("length", [2, 7, 9, 10, 12, 13, 14, 40, 41])
def test_every_piece_but_the_first_is_scored_once(length: int) -> None:
    torch.manual_seed(0)
    net = Gpt(words=300, places=8, width=4, heads=1, layers=1).double()
    numbers, expected = torch.randint(300, (length,)), 0.0
    for place in range(1, length):
        start = 0 if place <= 8 else (place - 5) // 4 * 4  # the steps that follow are of 4 pieces
        with torch.no_grad():
            logits = net(net.words(numbers[None, start:place]))[0, -1]
        expected -= float(logits.log_softmax(0)[numbers[place]])
    assert surprise(net, numbers, batch=2) == pytest.approx(expected, rel=1e-9)


def test_a_gpt_is_trained_and_judged_by_the_word(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def small() -> Gpt:
        pieces = torch.zeros(3, 16, dtype=torch.uint8)  # " a", " b", " c"
        return Gpt(words=259, places=16, width=8, heads=2, layers=1, pieces=pieces)

    monkeypatch.setattr(gpt, "gpt_small", small)
    place = tmp_path / "net.pt"
    words = ["--data", str(folder), "--epochs", "8", "--batch", "2", "--rate", "0.02", "--out", str(place)]
    assert gpt.main(words) == 0
    said = capsys.readouterr().out
    net, text = load_checkpoint(place, small()).eval(), load_text(folder)
    assert net.pieces is not None
    pieces = Pieces.of_table(net.pieces)
    numbers = pieced(text, "test", pieces)
    assert pieces.text(numbers.tolist()) == " b b a\n" * 12
    shown = math.exp(surprise(net, numbers) / (len(text.numbers["test"]) - 1))
    assert f"test perplexity {shown:.2f} of 48 words" in said
    assert float(said.split("validation perplexity ")[1].split()[0]) < 3.95  # as for the LSTM above
    monkeypatch.setattr(gpt, "gpt_small", gpt_small)
    assert gpt.main(["--data", str(folder), "--out", str(tmp_path / "other.pt")]) == 1
    assert "pieces in the text, 4096 expected" in capsys.readouterr().err


def test_the_shipped_gpt_prefers_the_text_to_its_words_in_another_order() -> None:
    net = load_checkpoint(ROOT / "checkpoints" / "wikitext2-gpt.pt", gpt_small()).eval()
    assert net.pieces is not None
    pieces, text = (
        Pieces.of_table(net.pieces),
        " In 1998 , the film was released in the United States . It was the first",
    )
    other = "".join(f" {word}" for word in sorted(text.split()))
    found, lost = (surprise(net, torch.tensor(pieces.numbers(words))) for words in (text, other))
    assert found + 20 < lost
