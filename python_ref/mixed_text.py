"""Text to compare tokenizers on: many scripts, emoji, code, runs of spaces, control characters and,
on demand, bytes that are no UTF-8. The same seed gives the same text."""

import random

WORDS = """the of and to in a is that for it was on are as with they be at one have this from or had by
not but what some we can out other were all there when up use your how said an each she which do their time
if will way about many then them would write like so these her long make thing see him two has look more day
could go come did number sound no most people my over know water than call first who may down side been now
find any new work part take get place made live where after back little only round man year came show every
good me give our under name very through just form sentence great think say help low line differ turn cause
tokenizer byte pair merge float return const void static include while for def self None True import""".split()

# Inclusive ranges of code points: letters, marks, digits and signs of many scripts.
SCRIPTS = [
    (0xC0, 0x17F), (0x180, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
    (0x530, 0x58F), (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x74F), (0x900, 0x97F), (0x980, 0x9FF),
    (0xA00, 0xA7F), (0xB80, 0xBFF), (0xC00, 0xC7F), (0xE00, 0xE7F), (0xE80, 0xEFF), (0xF00, 0xFFF),
    (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF),
    (0x1780, 0x17FF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x20CF),
    (0x2100, 0x218F), (0x2190, 0x23FF), (0x2460, 0x24FF), (0x2500, 0x27BF), (0x3000, 0x30FF),
    (0x3200, 0x33FF), (0x3400, 0x34FF), (0x4E00, 0x6FFF), (0xA000, 0xA4CF), (0xAC00, 0xD7A3),
    (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFE6F), (0xFF00, 0xFFEF), (0x10000, 0x100FF),
    (0x10300, 0x1034F), (0x10A00, 0x10A5F), (0x12000, 0x123FF), (0x13000, 0x1342F),
    (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x20000, 0x2A6DF), (0x30000, 0x3134F),
]  # fmt: skip
SPACES = [" ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\xa0", "\u1680", "\u2003",
          "\u2028", "\u202f", "\u3000", "\u200b", "\ufeff", "\u180e"]  # fmt: skip
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL",
                "'D", "'\u017f", "\u2019s", "''", "'x", "'r", "'l"]  # fmt: skip


def _sentence(rng):
    words = [rng.choice(WORDS) for _ in range(rng.randint(3, 25))]
    if rng.random() < 0.5:
        words[0] = words[0].capitalize()
    if rng.random() < 0.3:
        words[rng.randrange(len(words))] += rng.choice(CONTRACTIONS)
    if rng.random() < 0.2:
        words[rng.randrange(len(words))] = words[0].upper()
    return " ".join(words) + rng.choice([". ", ".\n", "! ", "?\n\n", ", ", "...", " - ", ";"])


def _script(rng):
    first, last = rng.choice(SCRIPTS)
    words = []
    for _ in range(rng.randint(1, 8)):
        codes = (rng.randint(first, last) for _ in range(rng.randint(1, 10)))
        words.append("".join(map(chr, codes)))
    return rng.choice([" ", " ", "", ", ", "\u3002"]).join(words) + rng.choice([" ", "\n", ""])


def _code(rng):
    indent = rng.choice(["", "  ", "    ", "\t", "\t\t", " " * 12])
    name = "_".join(rng.choice(WORDS) for _ in range(rng.randint(1, 3)))
    camel = "".join(rng.choice(WORDS).capitalize() for _ in range(rng.randint(1, 3)))
    line = rng.choice([
        f"for (int {name} = 0; {name} < {rng.randint(0, 9999)}; ++{name}) {{",
        f"def {name}(self, {camel}=None):", f"return {name}[{rng.randint(0, 99)}]->{camel}(); // {name}",
        f'#include "{name}/{camel}.h"', f"{camel}::{name}<{camel}>&& x{{}};", f"<{name} id='{camel}'/>",
        f"if ({name} != nullptr && !{camel}) {{}} else {{ {name} |= 0x{rng.getrandbits(32):08X}; }}",
        f"https://{name}.example.org/{camel}?q={rng.randint(0, 10**9)}#%20", f"$ {name} --{camel}={name}",
    ])  # fmt: skip
    return indent + line + rng.choice(["\n", "\r\n", "\n\n"])


def _number(rng):
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12)))
    odd = "".join(rng.choice("\u00b2\u00bd\u0663\u0967\u2167\u2460\u3007\uff11\U0001d7d8")
                  for _ in range(rng.randint(1, 5)))  # fmt: skip
    return rng.choice([digits, f"{digits}.{digits}", f"-{digits}e{digits[:2]}", f"${digits}", odd,
                       f"{digits}{odd}", f" {digits},{digits} "])  # fmt: skip


def _emoji(rng):
    one = chr(rng.choice([rng.randint(0x1F300, 0x1FAFF), rng.randint(0x2600, 0x27BF)]))
    return one + rng.choice(["", "\ufe0f", "\u200d" + chr(rng.randint(0x1F466, 0x1F469)), " ",
                             chr(rng.randint(0x1F3FB, 0x1F3FF)), one * rng.randint(1, 4)])  # fmt: skip


def _spaces(rng):
    if rng.random() < 0.5:
        return rng.choice(SPACES[:5]) * rng.randint(1, 40)
    return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 12)))


def _controls(rng):
    return "".join(chr(rng.choice([rng.randint(0, 31), rng.randint(127, 159)]))
                   for _ in range(rng.randint(1, 6)))  # fmt: skip


def _anything(rng):
    codes = []
    for _ in range(rng.randint(1, 12)):
        code = rng.randint(0, 0x10FFFF)
        codes.append("\ufffd" if 0xD800 <= code < 0xE000 else chr(code))
    return "".join(codes)


def _repeats(rng):
    unit = "".join(rng.choice(["a", "=", "-", "ab", "\u0416", "\u6c34", "0", "!"])
                   for _ in range(rng.randint(1, 2)))  # fmt: skip
    return unit * rng.randint(2, 300)


def _special(rng):
    return rng.choice(["<|endoftext|>", "<|begin_of_text|>", "<|end", "of_text|>", "<|eot_id|>"])


KINDS = [(_sentence, 40), (_script, 20), (_code, 20), (_number, 8), (_emoji, 8), (_spaces, 10),
         (_controls, 3), (_anything, 5), (_repeats, 1), (_special, 1)]  # fmt: skip


def mixed_text(size, seed):
    """Text of at least `size` bytes in UTF-8."""
    rng = random.Random(seed)
    makers, weights = zip(*KINDS)
    parts, total = [], 0
    while total < size:
        part = rng.choices(makers, weights)[0](rng)
        parts.append(part)
        total += len(part.encode())
    return "".join(parts)


def with_invalid_bytes(text, seed, share=0.02):
    """The text's bytes with some removed, doubled or replaced, so that not all of them are UTF-8."""
    rng = random.Random(seed)
    out = bytearray()
    for byte in text.encode():
        draw = rng.random()
        if draw < share / 3:
            continue
        out.append(rng.randrange(256) if draw < 2 * share / 3 else byte)
        if draw > 1 - share / 3:
            out.append(byte)
    return bytes(out)
