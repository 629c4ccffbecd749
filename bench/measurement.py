"""Shared by the comparisons of Lockstep with other libraries: the process to measure, spreads, and the results file."""
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess


class Program:
    def __init__(self, command, **options):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
        self.ready = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("%s failed with status %s" % (self.process.args, self.process.wait()))
        return line.split()

    def figures(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return [float(figure) for figure in self.answer()]

    def rate(self, order):
        return self.figures(order)[0]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def versions_of(program):
    """Versions of Lockstep and of the libraries that the program was built with."""
    info = pathlib.Path(program).with_name("lockstep-info")
    return json.loads(subprocess.check_output([info, "--json"]))["versions"]


def circumstances(versions, loads):
    """Date, machine, load and versions: the head of a results file."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": max(loads),
        "system": platform.platform(),
        "versions": versions,
    }


def write_results(name, result):
    """Writes bench/results/NAME-DATE.json."""
    folder = pathlib.Path(__file__).resolve().parent / "results"
    folder.mkdir(exist_ok=True)
    path = folder / ("%s-%s.json" % (name, result["date"].replace(":", "").replace("+0000", "Z")))
    path.write_text(json.dumps(result, indent=2) + "\n")
    print("written:", path)
