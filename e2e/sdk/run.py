"""Plays cases and writes what each of them saw, one JSON object a line.

usage: run.py --base-url http://127.0.0.1:8080 --engine small|sim|vllm --out FILE [--group NAME]... [--only TEXT]
"""

from __future__ import annotations

import argparse
import json
import sys

import cases
import anthropic_cases  # noqa: F401 - registers its cases
import leaving  # noqa: F401
import openai_cases  # noqa: F401
import refusals  # noqa: F401
import together  # noqa: F401


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--engine", required=True, choices=sorted(cases.ENGINES))
    parser.add_argument("--out", required=True)
    parser.add_argument("--group", action="append")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    groups = arguments.group or ["answers"]
    chosen = [
        one
        for one in cases.REGISTER
        if arguments.engine in one.engines and one.group in groups and arguments.only in one.name
    ]
    if not chosen:
        sys.exit(f"no case of {groups} for {arguments.engine}")
    failed = 0
    with open(arguments.out, "w", encoding="utf-8") as out:
        for one in chosen:
            result = cases.play(one, arguments.base_url, arguments.engine)
            failed += result["error"] is not None
            print(f"{'failed' if result['error'] else 'ok':>6}  {one.name}", flush=True)
            if result["error"]:
                print(result["error"], flush=True)
            out.write(json.dumps(result) + "\n")
    print(f"{len(chosen)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
