"""Draw the pictures of docs/ that no contract describes.

usage: python tools/drawings.py

Writes docs/images/processes.svg, forms.svg, sequence-states.svg and slices.svg. Look at a picture after every
change: nothing here measures whether texts fit their boxes.
"""

from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
STYLE = (
    "text{font-family:-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328;text-anchor:middle}"
    ".n{font-size:14px;font-weight:600}.c{font-size:12px}.s{font-size:12px;fill:#57606a}.l{text-anchor:start}"
    ".r{text-anchor:end}.m{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:12px}"
)
THREAD, QUEUE, DEVICE, PLAIN, GREY = "#ddf4ff", "#fff8c5", "#dafbe1", "#ffffff", "#f6f8fa"
QUERY, ITEM_A, ITEM_B, MARK = "#b6e3ff", "#aceebb", "#ffd8b5", "#eaeef2"


class Sketch:
    """An SVG that is put together from boxes, arrows and texts."""

    def __init__(self, width: int, height: int, label: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(label)}">'
        )
        self._parts = [
            f"<style>{STYLE}</style>",
            '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0L10 5L0 10z" fill="#57606a"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]

    def text(self, x: float, y: float, words: str, style: str = "c") -> None:
        """Write one line with its baseline at y; styles are the classes of `STYLE`."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" class="{style}">{escape(words)}</text>')

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        name: str = "",
        *lines: str,
        fill: str = PLAIN,
        round: int = 6,
    ) -> None:
        """Draw a box with a name and lines below it, in its middle."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{round}" fill="{fill}" stroke="#8c959f"/>'
        )
        first = y + h / 2 + 5 - 7.5 * len(lines)
        if name:
            self.text(x + w / 2, first, name, "n")
        for number, line in enumerate(lines, 1):
            self.text(x + w / 2, first + 15 * number, line)

    def process(self, x: float, y: float, w: float, h: float, name: str) -> None:
        """Draw the border of a process, with its name in the upper left corner."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="10" fill="{GREY}" stroke="#57606a" '
            'stroke-dasharray="6 4"/>'
        )
        self.text(x + 10, y + 19, name, "n l")

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """Draw a line through points, with a head at the last one."""
        path = " L ".join(f"{x:g} {y:g}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<path d="M {path}" fill="none" stroke="#57606a" stroke-width="1.4"{dash} marker-end="url(#a)"/>'
        )

    def cells(self, x: float, y: float, values: str, fills: str) -> None:
        """Draw numbers in a row of cells; `fills` has a letter of q, a, b and d for each."""
        colours = {"q": QUERY, "a": ITEM_A, "b": ITEM_B, "d": MARK}
        for place, (value, fill) in enumerate(zip(values.split(), fills, strict=True)):
            left = x + 30 * place
            self._parts.append(
                f'<rect x="{left:g}" y="{y:g}" width="28" height="22" rx="3" fill="{colours[fill]}" '
                'stroke="#8c959f"/>'
            )
            self.text(left + 14, y + 15, value, "m")

    def line(self, x: float, y: float, end: float) -> None:
        """Draw a thin horizontal line."""
        self._parts.append(f'<path d="M {x:g} {y:g} H {end:g}" stroke="#d0d7de"/>')

    def svg(self) -> str:
        return "\n".join([self._head, *self._parts, "</svg>", ""])


def processes() -> Sketch:
    """Processes, their threads, and the queues between them."""
    s = Sketch(980, 700, "The processes and threads of hiscore, and the queues between them")
    s.box(16, 60, 150, 50, "caller", "gRPC or HTTP")
    s.process(16, 150, 150, 120, "HTTP API")
    s.box(26, 180, 130, 80, "event loop", "one a process;", "renders prompts,", "shapes answers", fill=THREAD)
    s.process(16, 310, 150, 170, "launcher")
    s.box(26, 340, 130, 60, "watchdog", "restarts a server", "that died or hangs", fill=THREAD)
    s.box(26, 410, 130, 60, "canaries", "a real call after", "30 s without work", fill=THREAD)
    s.process(206, 40, 120, 440, "tritonserver")
    s.box(216, 70, 100, 60, "gRPC 8001", "HTTP 8000", fill=THREAD)
    s.box(216, 180, 100, 64, "score", "ensemble:", "passes calls on", fill=THREAD)
    s.box(216, 270, 100, 50, "metrics", "8002", fill=THREAD)
    s.arrow((166, 85), (214, 85))
    s.arrow((90, 110), (90, 148))
    s.arrow((156, 215), (190, 215), (190, 110), (214, 110))
    s.arrow((156, 440), (196, 440), (196, 124), (214, 124), dashed=True)
    # The scorer.
    s.process(366, 16, 598, 300, "scorer: one process for each instance")
    s.box(380, 50, 110, 56, "execute", "Triton's thread:", "checks, queues", fill=THREAD)
    s.box(524, 50, 124, 56, "texts", "MAX_QUEUE", fill=QUEUE, round=26)
    s.box(690, 50, 120, 56, "encode", "on all cores", fill=THREAD)
    s.box(524, 144, 124, 62, "prompts", "MAX_QUEUE and", "a bound of tokens", fill=QUEUE, round=26)
    s.box(690, 144, 120, 62, "launch", "by any thread that", "sees it is time", fill=THREAD)
    s.box(690, 244, 120, 56, "device", "2 batches in flight", fill=DEVICE)
    s.box(524, 244, 124, 56, "answer", "waits, sends", fill=THREAD)
    s.box(836, 144, 114, 62, "alarm", "just before a", "batch ends", fill=THREAD)
    s.arrow((326, 78), (378, 78))
    s.arrow((490, 78), (522, 78))
    s.arrow((648, 78), (688, 78))
    s.arrow((750, 106), (750, 124), (586, 124), (586, 142))
    s.arrow((435, 106), (435, 175), (522, 175))
    s.text(443, 168, "token ids", "s l")
    s.arrow((648, 175), (688, 175))
    s.arrow((836, 175), (812, 175))
    s.arrow((750, 206), (750, 242))
    s.arrow((690, 272), (650, 272))
    s.arrow((524, 272), (346, 272), (346, 120), (318, 120))
    s.text(440, 265, "scores", "s")
    # The tokenizer.
    s.process(366, 330, 598, 44, "tokenizer: texts, encode and answer, as in the scorer")
    # Decode.
    s.process(366, 388, 598, 226, "decode: one process for each instance")
    s.box(380, 424, 110, 56, "execute", "Triton's thread:", "checks", fill=THREAD)
    s.box(524, 412, 124, 36, "intake", fill=THREAD)
    s.text(586, 462, "encodes long texts", "s")
    s.box(524, 476, 124, 48, "inbox", "MAX_QUEUE", fill=QUEUE, round=24)
    s.box(690, 452, 120, 96, "engine", "one loop: receive,", "schedule, launch,", "collect", fill=THREAD)
    s.box(836, 422, 114, 56, "masks", "of grammars", fill=THREAD)
    s.box(836, 500, 114, 84, "device", "queues: compute,", "offload, restore", "(streams)", fill=DEVICE)
    s.box(524, 548, 124, 48, "outputs", fill=QUEUE, round=24)
    s.box(380, 544, 110, 56, "sender", "joins, sends,", "sees who left", fill=THREAD)
    s.arrow((326, 446), (378, 446))
    s.arrow((490, 436), (522, 430))
    s.arrow((490, 466), (540, 482))
    s.arrow((524, 440), (508, 440), (508, 494), (524, 494))
    s.arrow((648, 500), (688, 500))
    s.arrow((810, 470), (834, 450))
    s.arrow((834, 462), (812, 482))
    s.arrow((810, 520), (834, 530))
    s.arrow((834, 544), (812, 534))
    s.arrow((720, 548), (720, 572), (650, 572))
    s.arrow((524, 572), (492, 572))
    s.arrow((380, 572), (346, 572), (346, 468), (318, 468))
    s.process(366, 628, 598, 44, "ranks: a process for each further GPU of a model")
    # Legend.
    s.box(16, 530, 24, 18, fill=THREAD)
    s.text(48, 544, "thread", "s l")
    s.box(16, 556, 24, 18, fill=QUEUE, round=9)
    s.text(48, 570, "queue", "s l")
    s.box(16, 582, 24, 18, fill=DEVICE)
    s.text(48, 596, "device", "s l")
    s.process(16, 608, 24, 18, "")
    s.text(48, 622, "process", "s l")
    s.text(16, 690, "Every model also has a thread that exports metrics once a second.", "s l")
    return s


def forms() -> Sketch:
    """The forms that the tokens of a call take on their way, with shapes."""
    s = Sketch(980, 600, "The forms of a scoring call, with shapes")
    s.text(16, 26, "A query of three tokens (1 2 3) and two items (4 5 and 6), k labels", "n l")
    rows = [
        ("text", "query STRING [1, 1], items STRING [1, n]", "", ""),
        ("on the wire", "input_ids int32 [1, t + n + 1]", "1 2 3 0 4 5 0 6 0", "qqqdaadbd"),
        ("", "delimiter_indices int32 [1, n + 1]", "3 6 8", "ddd"),
        ("MultiItemPrompt", "tokens int32 [t], without delimiters", "1 2 3 4 5 6", "qqqaab"),
        ("", "query_length 3, item_lengths int64 [n]", "2 1", "ab"),
        ("QueryGroup", "all prompts of the batch with this query, as one", "", ""),
        ("PackedPrompt", "its place in the batch; cached tokens have no row", "", ""),
        ("BatchRows", "one array of each kind for the whole batch, [T]", "", ""),
        ("Forward", "input_ids int32 [T], T up to MAX_BATCH_TOKENS", "1 2 3 4 5 6", "qqqaab"),
        ("", "positions int32 [T]: each item goes on from the query", "0 1 2 3 4 3", "qqqaab"),
        ("", "cu_seqlens int32 [segments + 1]", "0 3 5 6", "dddd"),
        ("", "groups: rows 0 to 2; rows 3 to 5, which also see rows 0 to 2", "", ""),
        ("", "scored_rows int64 [R]: the last row of each item", "4 5", "ab"),
        ("on the device", "one int32 buffer [4 x rows + tables], read by CUDA graphs", "", ""),
        ("hidden states", "[T, hidden]; after the last attention [R, hidden]", "", ""),
        ("HeadResult", "float32 [R, k]: logits or probabilities of the labels", "", ""),
        ("scores", "float32 [1, n, k]", "", ""),
    ]
    y = 44
    for number, (name, shape, values, fills) in enumerate(rows):
        if name and number:
            s.line(16, y - 3, 964)
        if name:
            s.text(16, y + 16, name, "n l")
        s.text(160, y + 16, shape, "c l")
        if values:
            s.cells(560, y, values, fills)
        y += 30
    s.text(560, 60, '"Fruit or tool? The ", ["apple is a", "hammer is a"]', "s l")
    s.box(560, y + 6, 20, 16, fill=QUERY, round=3)
    s.text(588, y + 19, "query", "s l")
    s.box(640, y + 6, 20, 16, fill=ITEM_A, round=3)
    s.text(668, y + 19, "first item", "s l")
    s.box(740, y + 6, 20, 16, fill=ITEM_B, round=3)
    s.text(768, y + 19, "second item", "s l")
    s.box(852, y + 6, 20, 16, fill=MARK, round=3)
    s.text(880, y + 19, "bookkeeping", "s l")
    return s


def sequence_states() -> Sketch:
    """The states of a sequence in decode, and what moves it from one to the next."""
    s = Sketch(980, 444, "The states of a sequence of decode")
    states = {
        "WAITING": (16, 40, "holds nothing"),
        "PREFILLING": (300, 40, "its prompt is computed"),
        "ADMITTED": (560, 40, "leaves staging"),
        "RUNNING": (804, 40, "a row of every step"),
        "RESTORING": (300, 170, "the host's copy comes in"),
        "DRAINING": (804, 170, "launched work ends"),
        "PREEMPTED": (300, 310, "has host pages, or none"),
        "FINISHED": (804, 310, "holds nothing"),
    }
    for name, (x, y, what) in states.items():
        s.box(x, y, 160, 60, name, what, fill=GREY if name == "FINISHED" else THREAD)
    s.arrow((176, 70), (298, 70))
    s.text(237, 62, "it fits (3)", "s")
    s.arrow((96, 100), (96, 200), (298, 200))
    s.text(104, 176, "it fits, and the host has", "s l")
    s.text(104, 192, "the beginning of its prompt", "s l")
    s.arrow((350, 170), (350, 102))
    s.text(342, 132, "landed,", "s r")
    s.text(342, 148, "new", "s r")
    s.arrow((460, 200), (620, 200), (620, 102))
    s.text(470, 192, "landed, was preempted", "s l")
    s.arrow((460, 70), (558, 70))
    s.text(509, 48, "last chunk", "s")
    s.text(509, 62, "launched (4)", "s")
    s.arrow((720, 70), (802, 70))
    s.text(761, 48, "copied and", "s")
    s.text(761, 62, "offloaded (5)", "s")
    s.arrow((884, 100), (884, 168))
    s.text(876, 130, "last token sampled,", "s r")
    s.text(876, 146, "ended or preempted", "s r")
    s.arrow((884, 230), (884, 308))
    s.text(892, 266, "read, copies", "s l")
    s.text(892, 282, "done (11)", "s l")
    s.arrow((804, 212), (700, 212), (700, 340), (462, 340))
    s.text(692, 286, "read, copies done, not ended:", "s r")
    s.text(692, 302, "preempted (9), spilled (10)", "s r")
    s.arrow((350, 310), (350, 232))
    s.text(342, 266, "it fits", "s r")
    s.text(342, 282, "again", "s r")
    s.text(
        16,
        398,
        "A sequence that ends or is preempted early goes to DRAINING from any state in which it holds pages of",
        "s l",
    )
    s.text(
        16,
        414,
        "the device; from WAITING and PREEMPTED it goes to FINISHED. If no other sequence is active, nobody would",
        "s l",
    )
    s.text(
        16,
        430,
        "wait for the copy, and the sequence skips RESTORING. The numbers are those of the steps.",
        "s l",
    )
    return s


def slices() -> Sketch:
    """Two large batches on one device, and a small call between two slices of the first."""
    s = Sketch(980, 330, "A timeline of two batches with a small call between two slices")
    lanes = {"arrivals": 52, "host": 112, "device": 172, "answers": 242}
    for name, y in lanes.items():
        s.text(16, y + 5, name, "n l")
        s.line(110, y + 22, 964)
    for name, x in {"batch A": 126, "batch B": 236, "small call s": 352}.items():
        s.text(x, 38, name)
        s.arrow((x, 44), (x, 72))
    colours = {"A": QUERY, "B": ITEM_A, "s": ITEM_B}
    host = [
        ("A", 126, 64, "pack, A1"), ("A", 262, 28, "A2"), ("s", 352, 44, "pack s"), ("A", 414, 28, "A3"),
        ("A", 514, 28, "A4"), ("B", 584, 60, "pack, B1"), ("B", 720, 28, "B2"), ("B", 820, 28, "B3"),
    ]  # fmt: skip
    for batch, x, width, name in host:
        s.box(x, 96, width, 34, fill=colours[batch], round=4)
        s.text(x + width / 2, 117, name)
    device = [
        ("A", 190, "slice A1"), ("A", 295, "slice A2"), ("s", 400, "s"), ("A", 446, "slice A3"),
        ("A", 546, "slice A4"), ("B", 646, "slice B1"), ("B", 752, "slice B2"), ("B", 852, "B3 ..."),
    ]  # fmt: skip
    for (batch, x, name), end in zip(device, [*(x for _, x, _ in device[1:]), 956], strict=True):
        s.box(x, 156, end - x, 34, fill=colours[batch], round=4)
        s.text((x + end) / 2, 177, name)
    for batch, x, width, name in [("s", 450, 50, "s"), ("A", 650, 92, "answers of A")]:
        s.box(x, 226, width, 34, fill=colours[batch], round=4)
        s.text(x + width / 2, 247, name)
    s.text(
        16,
        290,
        "The small call waits for the slice that runs (A2), not for batch A, and its answer goes out while A3",
        "s l",
    )
    s.text(
        16,
        306,
        "computes. The host launches each slice just before the previous one ends: so B is packed late enough to",
        "s l",
    )
    s.text(
        16,
        322,
        "take in calls that come while A computes, and still early enough that the device never waits for it.",
        "s l",
    )
    return s


DRAWINGS = {
    "processes.svg": processes, "forms.svg": forms, "sequence-states.svg": sequence_states, "slices.svg": slices,
}  # fmt: skip


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (IMAGES / name).write_text(draw().svg())
