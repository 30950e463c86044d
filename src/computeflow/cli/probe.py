"""`computeflow probe`: what this machine really gives, against what it should.

Under torchrun or srun it probes every rank and compares the nodes.
"""

from __future__ import annotations

from computeflow.cli.command import FORCE, AnswerCommand, choice, flag, option
from computeflow.cli.options import CATALOG
from computeflow.cli.types import DURATION, FILE, TOKENS, Count, Number

probe = AnswerCommand(
    "probe",
    "probes:probe",
    [
        flag("--quick", help="Fewer shapes, shorter: under a minute."),
        option(
            "--soak",
            type=DURATION,
            metavar="TIME",
            help="Keep the device busy so long (60s) and watch clocks, power and heat.",
        ),
        option(
            "--passes",
            type=Count(1, 20),
            default=1,
            help="Passes; with more than one every figure has a spread.",
        ),
        option(
            "--data",
            type=FILE,
            metavar="PATH",
            help="Training files: what this machine can read and decode of them.",
        ),
        option(
            "--tokens-per-second", type=TOKENS, metavar="N", help="What the plan needs from --data."
        ),
        option(
            "--storage",
            type=FILE,
            metavar="FOLDER",
            help="Where checkpoints would go. [default: here]",
        ),
        choice("--device", ["auto", "cpu", "cuda"], "auto", "What is probed."),
        option(
            "--accelerator",
            metavar="NAME",
            help="What the device is, if its driver's name is not in the catalog.",
        ),
        option(
            "--against",
            type=FILE,
            metavar="FILE",
            help="An earlier probe's JSON: expect of this machine what that one gave.",
        ),
        option(
            "--slack",
            type=Number(0.01, 0.9),
            default=0.25,
            help="How far from the earlier probe is still normal.",
        ),
        option(
            "--write-calibration",
            type=FILE,
            metavar="FILE",
            help="Write the figures for the predictor.",
        ),
        FORCE,
        flag("--accept", help="Exit 3 and name the nodes if any is not as expected."),
        option(
            "--ray",
            metavar="ADDRESS",
            help="Probe every node of a Ray cluster; auto: the one this machine is in.",
        ),
        CATALOG,
    ],
    help=__doc__ or "",
    html=False,
    renamed={"--repeats": "--passes", "--calibration": "--write-calibration"},
)
