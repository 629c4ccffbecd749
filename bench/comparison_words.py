"""Describes the figures of dp-vs-ddp in words: every number in a sentence was measured."""

NAMES = {"dp": "DataParallel", "ddp": "DistributedDataParallel"}
FEWEST = 3  # minimum number of repetitions to call one mode faster
SHORT = {"dp": "DP", "ddp": "DDP"}
OF_PART = {
    "input": "getting the batch",
    "forward": "forward",
    "backward": "backward",
    "slowest": "waiting for the slowest",
    "exposed": "exposed communication",
    "update": "waiting for the update",
    "rest": "other waiting",
}


def times(figures):
    if figures["min"] == figures["max"]:
        return "%.2f times" % figures["median"]
    return "%.2f times (%.2f to %.2f)" % (figures["median"], figures["min"], figures["max"])


def ms(value):
    return "%.2f ms" % value


def faster(comparison, dp, ddp, repetitions):
    figures = comparison["dp_over_ddp"]
    where = "%s, %d rows per step, %s" % (comparison["net"], comparison["batch"], devices(comparison["devices"]))
    if repetitions < FEWEST:
        verdict = "%s; at least %d are needed to tell which mode is faster" % (
            "one repetition has no spread" if repetitions == 1 else "%d repetitions hardly show a spread" % repetitions,
            FEWEST)
    elif figures["min"] <= 1 <= figures["max"]:
        verdict = "neither is faster than the other beyond the spread of repetitions"
    else:
        verdict = "%s is faster" % (NAMES["dp"] if figures["median"] > 1 else NAMES["ddp"])
    return "%s: %s. DP reaches %s DDP's samples per second: a step takes %s with DP, %s with DDP." % (
        where, verdict, times(figures), ms(dp["step"]["median"]), ms(ddp["step"]["median"]))


def devices(count):
    return "1 device" if count == 1 else "%d devices" % count


def reasons(dp, ddp):
    """The parts in which logged steps differ most, largest first."""
    gaps = {part: ddp["split"][part] - dp["split"][part] for part in OF_PART}
    total = ddp["split"]["step"] - dp["split"]["step"]
    shown = [part for part in sorted(gaps, key=lambda part: -abs(gaps[part]))
             if abs(gaps[part]) >= 0.01 * dp["split"]["step"]][:3]
    head = "Breakdown (logged steps: DP %s, DDP %s, a difference of %s): " % (
        ms(dp["split"]["step"]), ms(ddp["split"]["step"]), ms(abs(total)))
    if not shown:
        return head + "no part differs by 1% of a step."
    parts = ["DDP's %s takes %s of %s per step, DP's %s of %s" % (
        OF_PART[part], ms(ddp["split"][part]), ms(ddp["split"]["step"]), ms(dp["split"][part]),
        ms(dp["split"]["step"])) for part in shown]
    return head + "; ".join(parts) + "."


def hidden(run):
    split = run["split"]
    if split["communication"] <= 0:
        return "%s communicates nothing" % SHORT[run["mode"]]
    return "%s communicates for %s per step, of which %s (%.0f%%) overlap with backward" % (
        SHORT[run["mode"]], ms(split["communication"]), ms(split["overlap"]),
        100 * split["overlap"] / split["communication"])


def slowest(ddp):
    if len(ddp["slowest_ranks"]) < 1:
        return []
    most = max(ddp["slowest_ranks"], key=lambda rank: rank["share"])
    return ["In DDP the others wait longest for rank %d in %.0f%% of the steps, then for %s. A process spends %s per step "
            "in collectives before the last rank arrives." % (most["rank"], 100 * most["share"], ms(most["waited"]),
                                                             ms(ddp["split"]["in_collectives"]))]


def resources(dp, ddp):
    return "Memory per device: DP %.0f MB, DDP %.0f MB. The first step is done %.2f s after the start with DP, %.2f s " \
        "with DDP." % (dp["memory_per_device"]["median"] / 1e6, ddp["memory_per_device"]["median"] / 1e6,
                       dp["startup"]["median"], ddp["startup"]["median"])


def explain(comparison, dp, ddp, repetitions):
    first, second = hidden(dp), hidden(ddp)
    words = [faster(comparison, dp, ddp, repetitions), reasons(dp, ddp), first + "; " + second + "."]
    words += slowest(ddp) + [resources(dp, ddp)]
    if "dp_over_pytorch" in comparison:
        words.append("Compared with PyTorch's best setting on the same number of processes: DP %s, DDP %s." % (
            times(comparison["dp_over_pytorch"]), times(comparison["ddp_over_pytorch"])))
    return words


def caveats(result):
    """Caveats for readers of the figures."""
    found = ["Both modes: the same rows in the same order through the same loader (1 thread in each process), the same "
             "shards, one per device, the same sums over them, the same %s." % (
                 "%d cores per device" % result["cores_per_device"] if result["cores_per_device"] else
                 "%d cores" % result["cores"])]
    if result["load_average"] > result["cores"] + 0.5:
        found.append("The load average was up to %.1f on %d cores: other programs were running, and the figures "
                     "are unreliable." % (result["load_average"], result["cores"]))
    if result["kind"] == "cpu" and max(run["devices"] for run in result["runs"]) > result["cores"]:
        found.append("There are more devices than cores: devices take turns, and step times include waiting for a "
                     "core.")
    costs = [run["logged_over_timed"] for run in result["runs"]]
    found.append("Samples per second are measured in steps without a log. Logged steps took %.2f to %.2f times as "
                 "long; their split shows proportions." % (min(costs), max(costs)))
    if result["pytorch"]:
        found.append("PyTorch is given its batch in memory and reads nothing; its DDP uses gloo.")
    return found
