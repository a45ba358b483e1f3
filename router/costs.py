"""What speculation costs: time of a verifier step, and the wait for drafts. Learnt from what is observed."""

import math
from bisect import bisect_left
from collections import deque
from statistics import median

#: Batch sizes (rows) at which step times are remembered; others count for the nearest one.
ROW_GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

#: How much a cell of a neighbouring batch size counts beside one of the same, by distance on the grid.
_ROW_NEARNESS = (1.0, 0.1, 0.02)
#: Weight of the prior slope: that of one observation one token away from the mean.
_SLOPE_WEIGHT = 1.0
#: Weight of what the line through all cells says of one cell, in observations of the cell itself.
_LINE_WEIGHT = 3.0
#: Observations after which a cell that nobody refreshed counts half.
_HALF_LIFE = 2000.0
#: Observations after which curves are drawn anew.
_REDRAW_EVERY = 8
_MAX_CURVES = 256
#: Times outside are a broken clock, not a step.
_SHORTEST_S, _LONGEST_S = 1e-6, 3600.0


class _Cell:
    """The last observations of one place: their median is robust, their bounded number makes them fade.

    It starts with two made-up observations that say what was believed before, so that a first observation
    that happens to be far off is outvoted rather than believed.

    Args:
        size: Observations kept.
        believed: What is believed of this place so far; None when nothing is.
    """

    __slots__ = ("_values", "count", "middle", "seen_at")

    def __init__(self, size: int, believed: float | None = None) -> None:
        self._values: deque[float] = deque([] if believed is None else [believed, believed], maxlen=size)
        self.middle = 0.0 if believed is None else believed
        self.count = 0
        self.seen_at = 0

    def add(self, value: float, now: int) -> None:
        self._values.append(value)
        self.count = min(self.count + 1, self._values.maxlen or 0)
        self.middle = median(self._values)
        self.seen_at = now

    def weight(self, now: int) -> float:
        return self.count * 0.5 ** ((now - self.seen_at) / _HALF_LIFE)


class StepCost:
    """Seconds of a verifier step as a function of its rows and of the tokens proposed per row.

    Observations are kept as the logarithm of their ratio to an affine prior, in cells of (rows, tokens per
    row). For a batch size, a line through the medians of its cells (and, with less weight, of neighbouring
    sizes') says what was not seen, and each cell that was seen bends it. Estimates never fall as the tokens
    grow, whatever the noise says.

    Args:
        max_tokens: Longest proposal per row, tokens.
        step_s: Prior seconds of a step apart from rows and tokens.
        row_s: Prior seconds per row.
        token_s: Prior seconds per proposed token.
    """

    def __init__(self, max_tokens: int, step_s: float, row_s: float, token_s: float) -> None:
        self._max_tokens = max_tokens
        self._prior_parts = (step_s, row_s, token_s)
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._level = _Cell(31)
        self._now = 0
        self._curves: dict[int, list[float]] = {}
        self._speculated: set[int] = set()

    def observe(self, rows: int, proposed: int, seconds: float) -> None:
        """Book one step of `rows` requests that verified `proposed` tokens in all. Nonsense is ignored."""
        if rows < 1 or proposed < 0 or not _SHORTEST_S <= seconds <= _LONGEST_S:
            return
        self._now += 1
        tokens = min(self._max_tokens, round(proposed / rows))
        ratio = math.log(seconds / self._prior(rows, proposed))
        key = (_nearest_row(rows), tokens)
        if tokens:
            self._speculated.add(key[0])
        cell = self._cells.get(key)
        if cell is None:
            believed = None
            if self._level.count:
                believed = math.log(self.seconds(rows, proposed) / self._prior(rows, proposed))
            cell = self._cells[key] = _Cell(15, believed)
        cell.add(ratio, self._now)
        self._level.add(ratio, self._now)
        if self._now % _REDRAW_EVERY == 0 or self._now < _REDRAW_EVERY:
            self._curves.clear()

    def curve(self, rows: int) -> list[float]:
        """Seconds of a step of `rows` requests in which each has 0, 1, ... max_tokens tokens proposed."""
        curve = self._curves.get(rows)
        if curve is None:
            if len(self._curves) >= _MAX_CURVES:
                self._curves.clear()
            curve = self._curves[rows] = self._draw(rows)
        return curve

    def seconds(self, rows: int, proposed: float) -> float:
        """Seconds of a step of `rows` requests in which `proposed` tokens are verified in all."""
        curve = self.curve(rows)
        tokens = min(max(proposed / rows, 0.0), float(self._max_tokens))
        below = min(int(tokens), self._max_tokens - 1)
        return curve[below] + (tokens - below) * (curve[below + 1] - curve[below])

    def unseen(self, rows: int) -> bool:
        """Whether no step with proposals was ever seen at about this batch size."""
        return _nearest_row(rows) not in self._speculated

    def figures(self) -> list[dict[str, float]]:
        """The cells, for people: rows, proposed tokens per row, estimated seconds, observations held."""
        return [
            {
                "rows": ROW_GRID[row],
                "proposed_per_row": tokens,
                "seconds": round(self.curve(ROW_GRID[row])[tokens], 6),
                "samples": cell.count,
            }
            for (row, tokens), cell in sorted(self._cells.items())
        ]

    def _prior(self, rows: int, proposed: float) -> float:
        step, row, token = self._prior_parts
        return step + row * rows + token * proposed

    def _draw(self, rows: int) -> list[float]:
        place = _nearest_row(rows)
        # Cells of this and of neighbouring batch sizes, moved to this one: (tokens per row, seconds, weight).
        points: list[tuple[int, float, float]] = []
        for distance, nearness in enumerate(_ROW_NEARNESS):
            for row in {place - distance, place + distance}:
                for tokens in range(self._max_tokens + 1):
                    cell = self._cells.get((row, tokens))
                    if cell is not None:
                        seconds = self._prior(rows, rows * tokens) * math.exp(cell.middle)
                        points.append((tokens, seconds, nearness * cell.weight(self._now)))
        level = math.exp(self._level.middle)
        if not points:
            return [level * self._prior(rows, rows * tokens) for tokens in range(self._max_tokens + 1)]

        weight = sum(w for _, _, w in points)
        mean_x = sum(w * x for x, _, w in points) / weight
        mean_y = sum(w * y for _, y, w in points) / weight
        level = mean_y / self._prior(rows, rows * mean_x)
        slope = level * self._prior_parts[2] * rows
        spread = sum(w * (x - mean_x) ** 2 for x, _, w in points)
        shared = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points)
        slope = max(0.0, (shared + _SLOPE_WEIGHT * slope) / (spread + _SLOPE_WEIGHT))

        values, weights = [], []
        for tokens in range(self._max_tokens + 1):
            value = mean_y + slope * (tokens - mean_x)
            own = self._cells.get((place, tokens))
            trust = 0.0
            if own is not None:
                trust = own.weight(self._now)
                seen = self._prior(rows, rows * tokens) * math.exp(own.middle)
                value += (seen - value) * trust / (trust + _LINE_WEIGHT)
            values.append(max(value, 1e-6))
            weights.append(trust + 0.1)
        return _never_falling(values, weights)


class WaitCost:
    """Seconds that a step waits for one draft, as an affine function of the proposal's length.

    Fitted to the median of the last waits per length; two faint points of the prior, moved to the observed
    level, settle the slope while only one length was seen.

    Args:
        max_tokens: Longest proposal, tokens.
        base_s: Prior seconds apart from tokens.
        token_s: Prior seconds per token.
    """

    def __init__(self, max_tokens: int, base_s: float, token_s: float) -> None:
        self._max_tokens = max_tokens
        self._prior = (base_s, token_s)
        self._cells: dict[int, _Cell] = {}
        self._level = _Cell(15, 1.0)
        self._now = 0
        self._used = False
        self._line: tuple[float, float] | None = (base_s, token_s)
        self._curve: list[float] | None = None

    def observe(self, length: int, seconds: float) -> None:
        """Book one wait for a proposal of `length` tokens. Nonsense is ignored."""
        if length < 1 or not 0.0 <= seconds <= _LONGEST_S:
            return
        length = min(length, self._max_tokens)
        self._now += 1
        cell = self._cells.get(length)
        if cell is None:
            base, token = self.line()
            cell = self._cells[length] = _Cell(15, base + token * length)
        cell.add(seconds, self._now)
        self._used = True
        expected = self._prior[0] + self._prior[1] * length
        self._level.add(seconds / expected if expected > 0.0 else 1.0, self._now)
        if self._now % _REDRAW_EVERY == 0 or self._now < _REDRAW_EVERY:
            self._line = self._curve = None

    def fade(self) -> None:
        """Forget everything, unless there was an observation since the last call.

        A draft that was slow once is asked no more, so nothing would ever say that it is quick again.
        """
        if not self._used and self._cells:
            self._cells.clear()
            self._level = _Cell(15, 1.0)
            self._line = self._curve = None
        self._used = False

    def line(self) -> tuple[float, float]:
        """(seconds apart from tokens, seconds per token), both at least 0."""
        if self._line is None:
            self._line = self._fit()
        return self._line

    def curve(self) -> list[float]:
        """Seconds waited for proposals of 0, 1, ... max_tokens tokens; nobody waits for none."""
        if self._curve is None:
            base, token = self.line()
            self._curve = [0.0] + [base + token * length for length in range(1, self._max_tokens + 1)]
        return self._curve

    def _fit(self) -> tuple[float, float]:
        base, token = self._prior
        level = self._level.middle
        points = [(float(n), level * (base + token * n), 0.5) for n in (1, self._max_tokens + 1)]
        points += [(float(n), cell.middle, cell.weight(self._now)) for n, cell in self._cells.items()]
        weight = sum(w for _, _, w in points)
        mean_x = sum(w * x for x, _, w in points) / weight
        mean_y = sum(w * y for _, y, w in points) / weight
        spread = sum(w * (x - mean_x) ** 2 for x, _, w in points)
        slope = max(0.0, sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points) / spread)
        return max(0.0, mean_y - slope * mean_x), slope


def _nearest_row(rows: int) -> int:
    """Index of the entry of ROW_GRID nearest to `rows` in proportion."""
    place = bisect_left(ROW_GRID, rows)
    if place == len(ROW_GRID):
        return place - 1
    if place and rows * rows < ROW_GRID[place] * ROW_GRID[place - 1]:
        return place - 1
    return place


def _never_falling(values: list[float], weights: list[float]) -> list[float]:
    """The nearest sequence that never falls: neighbours in the wrong order are replaced by their mean.

    (Pool adjacent violators; Barlow et al., Statistical Inference under Order Restrictions, 1972.)
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        count = 1
        while pools and pools[-1][0] > value:
            before, before_weight, before_count = pools.pop()
            value = (before * before_weight + value * weight) / (before_weight + weight)
            weight += before_weight
            count += before_count
        pools.append((value, weight, count))
    return [value for value, _, count in pools for _ in range(count)]
