"""Mutated entries of the corpus."""

from hypothesis import strategies as st

from fuzz.law import LONGEST, Target

ANYWHERE = (
    *(b"", b"\0", b"\n", b"\r\n", b" ", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b",", b":", b"-", b"/", b"..", b"%"),
    *(
        b"null",
        b"true",
        b"{}",
        b"[]",
        b'""',
        b"0",
        b"-1",
        b"1e999",
        b"-1e999",
        b"NaN",
        b"Infinity",
        b"9" * 30,
        b"9" * 5000,
    ),
    *(
        b'"\\ud800"',
        b"\xed\xa0\x80",
        b"\xff",
        b"\xc3",
        "\u202e".encode(),
        "\u0130".encode(),
        "٣".encode(),
        b"\xef\xbb\xbf",
    ),
    *(b"[" * 200, b"(" * 200, b"{{" * 100, b"\x7f", b"\x80" * 10, b"\xff" * 8, b"../" * 5, b"%00", b"%2e%2e%2f"),
)


@st.composite
def mutated(draw: st.DrawFn, target: Target, seeds: list[bytes]) -> bytes:
    words = st.sampled_from([*ANYWHERE, *target.words])
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(data)))
        upto = min(len(data), at + draw(st.sampled_from((0, 1, 1, 2, 4, 16, 64, 1000))))
        match draw(st.sampled_from(("word", "word", "drop", "cut", "bytes", "again", "other", "flip"))):
            case "word":
                data[at:upto] = draw(words)
            case "drop":
                del data[at:upto]
            case "cut":
                del data[at:]
            case "bytes":
                data[at:upto] = draw(st.binary(max_size=8))
            case "again":
                data[at:at] = data[at:upto] * draw(st.integers(1, 50))
            case "other":
                piece = draw(st.sampled_from(seeds))
                first = draw(st.integers(0, len(piece)))
                data[at:upto] = piece[first : first + draw(st.integers(0, 200))]
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(data[:LONGEST])
