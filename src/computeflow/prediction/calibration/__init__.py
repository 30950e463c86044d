"""Measured figures in place of generic ones, from a probe or from a few of a site's own steps.

`load_calibration` reads a file, `Calibration` puts it to use, `calibrate` makes a site's factor.
"""

from computeflow.prediction.calibration.calibrate import calibrate
from computeflow.prediction.calibration.file import load_calibration, read_calibration
from computeflow.prediction.calibration.measured_hardware import Calibration
from computeflow.prediction.calibration.site import SiteCalibration

__all__ = ["Calibration", "SiteCalibration", "calibrate", "load_calibration", "read_calibration"]
