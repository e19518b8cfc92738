"""Writes tests/golden/tokenizers: two small tokenizers and what Hugging Face's tokenizers and tiktoken
make of texts with them.

  small_gpt2.json, small_llama3.json   tokenizer.json files as Hugging Face's library writes them
  small_llama3.tiktoken                the second as a rank file
  cases.jsonl                          {text, gpt2, llama3}: texts and their ids
  training.txt, training_merges.txt    a text, and the merges that Hugging Face's trainer learns from it
"""

import base64
import json
import pathlib

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from mixed_text import CONTRACTIONS, mixed_text

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FOLDER = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "tokenizers"


def train(pre_tokenizer, ignore_merges, texts, vocab_size):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False, min_frequency=2,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def rank_file_of(tokenizer):
    byte_of = {}  # the byte of each character that stands for one
    unused = 256
    for byte in range(256):
        prints = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        byte_of[chr(byte if prints else unused)] = byte
        unused += not prints
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    return {bytes(byte_of[c] for c in token): rank for token, rank in vocab.items()}


def texts():
    hand = ["", " ", "\n", "  \n \n a", "Hello world", "it's IT'S it'\u017f we'LL", "\u00e9te\u0301",
            "x\u00a0\u3000y  z\r\n\r\n \t", "3.14159 1234567 \u00bd\u00bd\u2167\u0663", "<|endoftext|>",
            "\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4", "\U0001f600\U0001f468\u200d\U0001f469", "!!\n\nword",
            " ?!\r\n  x", "a" * 100, "-" * 77, "\x00\x01\x7f\x85\u200b\ufeff", " ".join(CONTRACTIONS)]  # fmt: skip
    return hand + [mixed_text(120, seed=100 + i) for i in range(80)]


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    training = [mixed_text(300_000, seed=1)]
    gpt2 = train(pre_tokenizers.ByteLevel(add_prefix_space=False), False, training, 700)
    split = pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    llama3 = train(pre_tokenizers.Sequence([split, byte_level]), True, training, 700)
    ranks = rank_file_of(llama3)
    by_rank = sorted(ranks.items(), key=lambda item: item[1])
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in by_rank)
    (FOLDER / "small_llama3.tiktoken").write_text("".join(lines))
    encoding = tiktoken.Encoding(
        "small", pat_str=LLAMA3_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    gpt2.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    names = ["<|begin_of_text|>", "<|end_of_text|>"]
    llama3.add_special_tokens([AddedToken(name, special=True) for name in names])
    gpt2.save(str(FOLDER / "small_gpt2.json"), pretty=False)
    llama3.save(str(FOLDER / "small_llama3.json"), pretty=False)
    text = mixed_text(24_000, seed=3)
    (FOLDER / "training.txt").write_bytes(text.encode())
    learned = train(pre_tokenizers.ByteLevel(add_prefix_space=False), False, [text], 1200)
    merges = json.loads(learned.to_str())["model"]["merges"]
    (FOLDER / "training_merges.txt").write_text("".join(" ".join(pair) + "\n" for pair in merges))
    for tokenizer in (gpt2, llama3):
        tokenizer.encode_special_tokens = True  # as plain text
    with open(FOLDER / "cases.jsonl", "w", encoding="utf-8") as out:
        for text in texts():
            ids = llama3.encode(text, add_special_tokens=False).ids
            assert ids == encoding.encode_ordinary(text), text
            case = {"text": text, "gpt2": gpt2.encode(text, add_special_tokens=False).ids, "llama3": ids}
            out.write(json.dumps(case) + "\n")


if __name__ == "__main__":
    main()
