"""Runs the comparison; started by tests/bench/compare, which builds first. See there for the options."""

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
import time

import machine
import parsers
import report
import rows


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(prog="compare", allow_abbrev=False)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quiet", type=float, default=0, metavar="S")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only", default="", metavar="ROW,...")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--bin", default="", help=argparse.SUPPRESS)
    parser.add_argument("--tool", action="append", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds: at least 1")
    try:
        options.selection = rows.select([name for name in options.only.split(",") if name])
    except ValueError as error:
        parser.error(str(error))
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.seconds = 0.2 if options.quick else 1.0
    return options


def list_rows(selection):
    for section, chosen in selection:
        print(f"-- {section.title}")
        for row in chosen:
            targets = [f"{beside.meter} {beside.target}" for beside in row.besides if beside.target]
            targets += [f"{row.limit} {row.unit}"] if row.limit else []
            print(f"{row.name:24} {row.title}" + (f"  [{'; '.join(targets)}]" if targets else ""))


def needed_meters(chosen):
    """The meters of these rows, each once, in the order in which the rows name them."""
    return list(dict.fromkeys(name for row in chosen for name in (row.meter, *(b.meter for b in row.besides))))


def measure_once(meter, measured, number, say):
    """One measurement into `measured`; nothing that goes wrong stops the others."""
    try:
        measured.rounds[number] = meter.measure()
        say(f"{meter.name}: " + "  ".join(f"{name} {value:.6g}" for name, value in measured.rounds[number].items()))
    except machine.NotHere as reason:
        measured.not_here = str(reason)
    except (machine.Failed, parsers.ParseError) as error:
        measured.error = str(error)
    if measured.trouble():
        say(f"{meter.name}: {measured.trouble()}")


def measure_section(section, chosen, programs, options, say):
    """{meter: Measured}. Round by round, each meter once a round."""
    names = needed_meters(chosen)
    with contextlib.ExitStack() as stack:
        try:
            meters = section.prepare(programs, options.seconds, stack)
        except machine.NotHere as reason:
            say(f"not here: {reason}")
            return {name: report.Measured(name, not_here=str(reason)) for name in names}
        except (machine.Failed, parsers.ParseError) as error:
            say(f"error: {error}")
            return {name: report.Measured(name, error=str(error)) for name in names}
        measured = {name: report.Measured(meters[name].name) for name in names}
        rounds = 1 if section.once else options.rounds
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            if not machine.wait_quiet(options.quiet):
                say("the machine is busy with something else")
            for name in names:
                if measured[name].not_here is None:
                    measure_once(meters[name], measured[name], number, say)
        return measured


def describe_machine():
    model = "unknown"
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        model = next((line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")), model)
    return {"cpus": os.cpu_count(), "model": model, "kernel": platform.release(), "load_before": os.getloadavg()[0]}


def stop(number, _):
    raise SystemExit(128 + number)


def main(arguments):
    options = parse_arguments(arguments)
    if options.list:
        list_rows(options.selection)
        return 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)  # as an exception, so that whatever was started ends
    programs = machine.Programs(options.bin, dict(tool.split("=", 1) for tool in options.tool))
    about = describe_machine()
    start = time.monotonic()
    sections = []
    for section, chosen in options.selection:
        print(f"== {section.title}", file=sys.stderr)
        measured = measure_section(section, chosen, programs, options,
                                   lambda text: print(f"   {text}", file=sys.stderr, flush=True))
        sections.append((section.title, [(row, measured) for row in chosen]))
    about["load_after"] = os.getloadavg()[0]
    about["seconds"] = round(time.monotonic() - start, 1)
    print(f"\n{about['cpus']} x {about['model']}, Linux {about['kernel']}, load {about['load_before']:.2f} before "
          f"and {about['load_after']:.2f} after; "
          f"{options.rounds} rounds{', quick' if options.quick else ''}\n")
    print(report.table(sections), end="")
    if options.json:
        document = {"machine": about, "quick": options.quick, "rounds": options.rounds, "rows": [
            report.row_json(row, measured) for _, chosen in sections for row, measured in chosen]}
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1)
            out.write("\n")
    failed = any(one.error is not None for _, chosen in sections for _, measured in chosen for one in measured.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
