#!/usr/bin/env python3
"""What a page load over two links could gain at best: a fluid model of ./dev bench page, without TCP's slow start and losses.

Prints the time over that of the better link alone, mean and worst of 40 draws of 60 sizes (log-uniform, factor 150):

  any byte    every byte may take either link: nobody does better
  pinned      connections stay on their link, shared out as max-throughput does; each asks for the next object when it
              has one, a round trip later
  request     each object is placed anew, by what is left on the links: only for who reads the requests
"""

import random
import statistics

RATES = [20e6 * 0.955 / 8, 10e6 * 0.955 / 8]  # payload, bytes a second
ROUND_TRIPS = [0.02, 0.04]
FIRST = 0.1  # the page itself: a handshake, a question, and the browser's reading it
MEAN = 51_400


def sizes(seed, scale):
    rng = random.Random(seed)
    drawn = [150 ** rng.random() for _ in range(60)]
    return [size * MEAN * scale * 60 / sum(drawn) for size in drawn]


def load(links, objects, is_free):
    """Seconds. links: of each connection; is_free: objects take any, as many at a time."""
    waiting, idle, active, now = list(objects), list(links), [], FIRST
    while waiting or active:
        while waiting and len(active) < len(links):
            size = waiting.pop(0)
            if is_free:
                finish = [
                    (sum(one[2] for one in active if one[0] == link) + size) / RATES[link] + ROUND_TRIPS[link]
                    for link in (0, 1)
                ]
                link = finish.index(min(finish))
            else:
                link = idle.pop(0)
            active.append([link, ROUND_TRIPS[link], size])
        moving = [sum(one[0] == link and one[1] <= 0 for one in active) for link in (0, 1)]
        rate = lambda one: RATES[one[0]] / moving[one[0]]
        step = min(one[1] if one[1] > 0 else one[2] / rate(one) for one in active)
        for one in active:
            if one[1] > 0:
                one[1] = one[1] - step if one[1] - step > 1e-9 else 0
            else:
                one[2] -= step * rate(one)
        now += step
        for one in [one for one in active if one[1] <= 0 and one[2] < 1]:
            active.remove(one)
            idle.append(one[0])
    return now


def main():
    for hosts in (1, 4):
        split = [0, 0, 1, 0, 0, 1] * hosts
        for scale in (1, 2, 4):
            ratios = {"any byte": [], "pinned": [], "request": []}
            for seed in range(40):
                objects = sizes(seed, scale)
                alone = load([0] * len(split), objects, False)
                least = FIRST + ROUND_TRIPS[0] + sum(objects) / sum(RATES)
                ratios["any byte"].append(least / alone)
                ratios["pinned"].append(load(split, objects, False) / alone)
                ratios["request"].append(load(split, objects, True) / alone)
            shown = ", ".join(
                f"{name} {statistics.mean(values):.2f} (worst {max(values):.2f})" for name, values in ratios.items()
            )
            print(f"{hosts} host(s), {MEAN * scale * 60 / 1e6:.1f} MB: {shown}")


if __name__ == "__main__":
    main()
