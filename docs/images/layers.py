#!/usr/bin/env python3
"""Draws the layers of a profile (--json of bench_network or lamina train) as dots: intensity
against achieved speed, both logarithmic, area by time.  layers.py profile.json >layers.svg"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 480, 70, 190, 46, 54
COLOURS = {"Conv2D": "#2563a8", "Linear": "#7a4fa3", "BatchNorm": "#c46a1b", "ReLU": "#3a8f5c",
           "Add": "#b23a48", "MaxPool2D": "#8a7a2c"}
OTHER = "#777777"


def main(path):
    profile = json.load(open(path))
    rows = [r for r in profile["rows"]
            if min(r["flop"], r["bytes"], r["time_s"]["mean"]) > 0 and r["pass"] != "update"]
    dots = [(r["ai"], r["flop"] / r["time_s"]["mean"] / 1e9, r["time_s"]["mean"], r) for r in rows]
    x0, x1 = (f(math.log10(d[0]) for d in dots) for f in (min, max))
    y0, y1 = (f(math.log10(d[1]) for d in dots) for f in (min, max))
    x0, x1, y0, y1 = math.floor(x0), math.ceil(x1), math.floor(y0), math.ceil(y1)
    longest = max(d[2] for d in dots)

    def at(ai, speed):
        x = LEFT + (math.log10(ai) - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (math.log10(speed) - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)
        return x, y

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12" fill="#333">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="26" font-size="15">Every layer and pass of {profile["model"]}, '
           f'batch {profile["batch"]}: area is time</text>']
    for e in range(x0, x1 + 1):
        x, _ = at(10 ** e, 10 ** y0)
        out.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>'
                   f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
                   f'{10.0 ** e:g}</text>')
    for e in range(y0, y1 + 1):
        _, y = at(10 ** x0, 10 ** e)
        out.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>'
                   f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0 ** e:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
               'intensity: FLOP per byte, each operand counted once</text>')
    out.append(f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
               'text-anchor="middle">GFLOP/s</text>')
    for ai, speed, seconds, row in sorted(dots, key=lambda d: -d[2]):
        x, y = at(ai, speed)
        radius = max(1.5, 16 * math.sqrt(seconds / longest))
        colour = COLOURS.get(row["type"], OTHER)
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}" '
                   f'fill-opacity="0.35" stroke="{colour}"><title>{row["layer"]} {row["pass"]}: '
                   f'{seconds * 1e3:.2f} ms, {speed:.1f} GFLOP/s</title></circle>')
    total = sum(d[2] for d in dots)
    types = {}
    for _, _, seconds, row in dots:
        types[row["type"]] = types.get(row["type"], 0) + seconds
    shown = [(k, s) for k, s in types.items() if s / total >= 0.001]
    for i, (kind, seconds) in enumerate(sorted(shown, key=lambda t: -t[1])):
        y = TOP + 14 + 22 * i
        out.append(f'<circle cx="{WIDTH - RIGHT + 24}" cy="{y - 4}" r="6" '
                   f'fill="{COLOURS.get(kind, OTHER)}"/><text x="{WIDTH - RIGHT + 38}" y="{y}">'
                   f'{kind}, {100 * seconds / total:.1f} %</text>')
    print("\n".join(out + ["</svg>"]))


main(sys.argv[1])
