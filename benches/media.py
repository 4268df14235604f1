"""Prints one line a policy from results.json of media.sh: media.py video|voice LABEL=FILE ...; medians of equal labels."""

import json
import statistics
import sys


def video(results):
    film = results["video"][0]
    unusable = film["lost_pkts"] + film["late_pkts"]
    return {
        "unusable packets": unusable,
        "of them late": film["late_pkts"],
        "%": 100 * unusable / film["sent_pkts"],
        "frames lost, late": film["frames_lost"] + film["frames_late"],
        "freezes": len(film["freezes"]),
        "frozen s": film["frozen_s"],
        "SSIM": film["ssim"],
        "p99 ms": results["flows"][0]["delay_ms"]["p99"],
        "extra bytes %": extra(results),
    }


def voice(results):
    call = results["voice"][0]
    download = sum(flow["goodput_mbps"] for flow in results["flows"] if flow["kind"] == "tcp")
    return {
        "lost": call["lost_pkts"],
        "late": call["late_pkts"],
        "burst ratio": call["burst_ratio"],
        "p99 ms": call["delay_ms"]["p99"],
        "added p99 ms": call["added_ms"]["p99"],
        "mouth to ear ms": call["mouth_to_ear_ms"],
        "R": call["r"],
        "MOS": call["mos"],
        "worst 5 s": call["worst_mos"],
        "dropouts": len(call["dropouts"]),
        "longest s": max((dropout["length_s"] for dropout in call["dropouts"]), default=0),
        "download Mbit/s": download,
        "extra bytes %": extra(results),
    }


def extra(results):
    """What the links carried towards the client beyond payload, in percent: headers, repairs, copies."""
    flows = results["flows"]
    payload = sum(f["goodput_mbps"] * (f["duration_s"] or results["duration_s"]) for f in flows) * 1e6 / 8
    carried = sum(link["down"]["tx_bytes"] for link in results["links"])
    return 100 * (carried / payload - 1) if payload else None


def short(value):
    if value is None:
        return "-"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4f}" if 0.9 <= value < 1 else f"{value:.3g}"
    return f"{value:.0f}"


def main():
    what, files = sys.argv[1], sys.argv[2:]
    row_of = {"video": video, "voice": voice}[what]
    rows, refused, name = {}, [], ""
    for argument in files:
        label, path = argument.split("=", 1)
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
        name = results["scenario"]
        if results["refused"]:
            refused.append(f"{label}, seed {results['seed']}: {results['refused']}")
        rows.setdefault(label, []).append(row_of(results))
    lines = [[f"{name}, {len(next(iter(rows.values())))} run(s) each", *next(iter(rows.values()))[0]]]
    for label, runs in rows.items():
        known = [[run[key] for run in runs if run[key] is not None] for key in runs[0]]
        lines.append([label] + [short(statistics.median(values) if values else None) for values in known])
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        first, *rest = zip(line, widths)
        print("  ".join([first[0].ljust(first[1])] + [text.rjust(width) for text, width in rest]))
    for text in refused:
        print(f"not valid: {text}")


main()
