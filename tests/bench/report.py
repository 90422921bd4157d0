"""The results as a table and as JSON. Pure."""

import dataclasses
import typing

from ratios import ratio_of, spread_of


@dataclasses.dataclass
class Measured:
    """What came out of one meter: {round: {figure: value}}, and the message of the last failure, if any."""
    name: str
    rounds: dict = dataclasses.field(default_factory=dict)
    not_here: typing.Optional[str] = None
    error: typing.Optional[str] = None

    def samples(self, figure):
        """{round: value} of one figure."""
        return {r: figures[figure] for r, figures in self.rounds.items() if figure in figures}

    def trouble(self):
        """Why there is nothing, or not all; None if all is well."""
        if self.not_here is not None:
            return f"not here: {self.not_here}"
        return None if self.error is None else f"error: {self.error}"


def _number(value):
    if value >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def _spread(spread):
    if spread.low == spread.high:
        return _number(spread.median)
    return f"{_number(spread.median)} ({_number(spread.low)}..{_number(spread.high)})"


def _verdict(target, value):
    if target is None:
        return ""
    return f"{target}: {'met' if target.met(value) else 'NOT MET'}"


def _spread_json(spread):
    return {"median": spread.median, "min": spread.low, "max": spread.high}


def _figure_json(measured, figure):
    samples = measured.samples(figure)
    document = {"name": measured.name, "figure": figure}
    if samples:
        document.update(_spread_json(spread_of(samples.values())))
        document["samples"] = [samples[r] for r in sorted(samples)]
    if measured.not_here is not None:
        document["not_here"] = measured.not_here
    if measured.error is not None:
        document["error"] = measured.error
    return document


def row_json(row, measured):
    """One row; `measured` is {meter: Measured}."""
    own = measured[row.meter]
    samples = own.samples(row.figure)
    document = {"row": row.name, "title": row.title, "unit": row.unit, "rdmad": _figure_json(own, row.figure),
                "beside": []}
    if row.limit is not None and samples:
        document["target"] = str(row.limit)
        document["met"] = row.limit.met(spread_of(samples.values()).median)
    if row.details:
        document["details"] = {name: _spread_json(spread) for name, spread in _details(row, own).items()}
    for beside in row.besides:
        other = measured[beside.meter]
        entry = _figure_json(other, beside.figure)
        ratio = ratio_of(samples, other.samples(beside.figure))
        if ratio is not None:
            entry["ratio"] = _spread_json(ratio)
        if beside.target is not None:
            entry["target"] = str(beside.target)
            if ratio is not None:
                entry["met"] = beside.target.met(ratio.median)
        document["beside"].append(entry)
    return document


def _details(row, own):
    """The row's other figures: those whose names begin like that of its own."""
    names = sorted({name for figures in own.rounds.values() for name in figures})
    return {name: spread_of(own.samples(name).values()) for name in names
            if row.details and name != row.figure and name.startswith(row.figure)}


def _row_lines(row, measured):
    """Cells (name, figure, ratio, target), or a whole line of text."""
    own = measured[row.meter]
    samples = own.samples(row.figure)
    lines = [f"{row.name}: {row.title}, {row.unit}"]
    if samples:
        spread = spread_of(samples.values())
        lines.append((f"  {own.name}", _spread(spread), "", _verdict(row.limit, spread.median)))
    if own.trouble():
        lines.append(f"  {own.name}: {own.trouble()}")
    for name, spread in _details(row, own).items():
        lines.append((f"    {name}", _spread(spread), "", ""))
    for beside in row.besides:
        other = measured[beside.meter]
        others = other.samples(beside.figure)
        if others:
            ratio = ratio_of(samples, others)
            lines.append((f"  {other.name}", _spread(spread_of(others.values())), _spread(ratio) if ratio else "-",
                          _verdict(beside.target, ratio.median) if ratio else ""))
        if other.trouble():
            lines.append(f"  {other.name}: {other.trouble()}")
    return lines


_HEAD = ("", "MEDIAN (min..max)", "RATIO (min..max)", "TARGET")


def table(sections):
    """`sections`: [(title, [(row, {meter: Measured})])]."""
    groups = [(title, [line for row, measured in rows for line in _row_lines(row, measured)])
              for title, rows in sections]
    columns = [_HEAD] + [line for _, lines in groups for line in lines if isinstance(line, tuple)]
    widths = [max(len(cells[i]) for cells in columns) for i in range(len(_HEAD))]

    def text(line):
        if isinstance(line, str):
            return line
        return "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()

    out = [text(_HEAD)]
    for title, lines in groups:
        out += ["", f"-- {title}"] + [text(line) for line in lines]
    return "\n".join(out) + "\n"
