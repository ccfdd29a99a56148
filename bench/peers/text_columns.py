# SPDX-License-Identifier: Apache-2.0
"""Reads lines of separated text with NumPy, without a Python object for each value."""

import numpy

CHUNK = 64 << 20
# Bytes after the text, so that a word of 8 bytes may be read at any of its places.
PADDING = 64


class Cells:
    """The values of some whole lines: where each begins and how long it is. Invariant: all lines have as many."""

    def __init__(self, text, delimiter, columns):
        self.bytes = numpy.frombuffer(text + bytes(PADDING), numpy.uint8)
        ends = numpy.flatnonzero((self.bytes == ord(delimiter)) | (self.bytes == ord("\n")))
        if len(ends) % columns != 0:
            raise ValueError(f"got {len(ends)} values, want a multiple of {columns}")
        starts = numpy.concatenate([[0], ends[:-1] + 1])
        self.starts = starts.reshape(-1, columns)
        self.lengths = (ends - starts).reshape(-1, columns)
        if not (self.bytes[ends.reshape(-1, columns)[:, -1]] == ord("\n")).all():
            raise ValueError(f"got a line without {columns} values")
        # The 8 bytes from each place on, as one word.
        self.words = numpy.ndarray((len(self.bytes) - 7,), "<u8", self.bytes, strides=(1,))

    def every(self, step, first):
        """Keeps the lines number `first`, `first` + `step` ..."""
        self.starts, self.lengths = self.starts[first::step], self.lengths[first::step]

    def hashes(self, column):
        """A 64-bit hash of each text, so that equal texts, and practically only these, have equal ones."""
        starts, lengths = self.starts[:, column], self.lengths[:, column]
        masks = numpy.array([(1 << (8 * n)) - 1 for n in range(9)], numpy.uint64)
        hashes = lengths.astype(numpy.uint64)
        for begin in range(0, int(lengths.max(initial=0)), 8):
            left = numpy.clip(lengths - begin, 0, 8)
            words = self.words[numpy.minimum(starts + begin, len(self.words) - 1)] & masks[left]
            hashes = numpy.where(left > 0, mix(hashes ^ words), hashes)
        return hashes

    def hexadecimals(self, column):
        """Whole numbers to base 16, as int64; -1 for an empty text."""
        value = self._digits(column, 16)[0]
        return numpy.where(self.lengths[:, column] == 0, -1, value)

    def decimals(self, column):
        """Numbers such as -0.25, as float64; 0 for an empty text."""
        value, places, negative = self._digits(column, 10)
        return numpy.where(negative, -1.0, 1.0) * value / 10.0 ** places

    def _digits(self, column, base):
        """The digits as one whole number, the number of them behind a point, and whether a minus came first."""
        starts, lengths = self.starts[:, column], self.lengths[:, column]
        value = numpy.zeros(len(starts), numpy.int64)
        places = numpy.zeros(len(starts), numpy.int64)
        negative = numpy.zeros(len(starts), bool)
        point = numpy.zeros(len(starts), bool)
        for at in range(int(lengths.max(initial=0))):
            letter = self.bytes[numpy.minimum(starts + at, len(self.bytes) - 1)].astype(numpy.int64)
            letter[at >= lengths] = 0
            digit = numpy.where(letter >= ord("a"), letter - ord("a") + 10, letter - ord("0"))
            is_digit = (digit >= 0) & (digit < base)
            value = numpy.where(is_digit, value * base + digit, value)
            places += is_digit & point
            point |= letter == ord(".")
            negative |= letter == ord("-")
        return value, places, negative


def mix(hashes):
    """A bijection on 64-bit numbers (the end of MurmurHash3)."""
    hashes = (hashes ^ (hashes >> numpy.uint64(33))) * numpy.uint64(0xFF51AFD7ED558CCD)
    hashes = (hashes ^ (hashes >> numpy.uint64(33))) * numpy.uint64(0xC4CEB9FE1A85EC53)
    return hashes ^ (hashes >> numpy.uint64(33))


def read_cells(file, delimiter, columns, step=1):
    """Yields Cells of the rest of `file`, which is open for bytes: of the lines number 0, `step`, 2 `step` ..."""
    rest, lines = b"", 0
    while True:
        chunk = file.read(CHUNK)
        text = rest + (chunk or (b"\n" if rest else b""))
        end = text.rfind(b"\n") + 1
        rest = text[end:]
        if end > 0:
            cells = Cells(text[:end], delimiter, columns)
            count = len(cells.starts)
            cells.every(step, -lines % step)
            lines += count
            yield cells
        if not chunk:
            return
