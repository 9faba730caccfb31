"""The environment variables of this project, lest a misspelt one is ignored in silence."""

import os
import re

AT_RUN_TIME = (
    "REDUCEOPS_CPU_ISA",
    "REDUCEOPS_CUDA_TUNING",
    "REDUCEOPS_HUGE_PAGES",
    "REDUCEOPS_LIBRARY_DIR",
    "REDUCEOPS_WITHOUT",
)
OF_BUILD = ("REDUCEOPS_CUDA", "REDUCEOPS_CUDNN", "REDUCEOPS_SANITIZE")
# Which are for setup.py and for the tests, and may be set where the package is imported.
OTHERS = (
    *OF_BUILD,
    "REDUCEOPS_REQUIRE_COMPILER",
    "REDUCEOPS_REQUIRE_GPU",
    "REDUCEOPS_TEST_EXAMPLES",
    "REDUCEOPS_TEST_SECONDS",
)
# What Kubernetes sets for a service that is named `reduceops`, or begins so, and Docker for a link.
_OF_SERVICES = re.compile(
    r"REDUCEOPS_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?"
    r"|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|ADDR|PORT|(PORT_)?(START|END)))?)?)"
    r"|REDUCEOPS_(NAME|ENV_.+)"
)


def check(listed: tuple[str, ...] = AT_RUN_TIME) -> None:
    """ImportError for a variable that is set, begins as ours do, and is none; it lists these."""
    for name, value in os.environ.items():
        is_known = name in (*AT_RUN_TIME, *OTHERS) or _OF_SERVICES.fullmatch(name)
        if value and name.startswith("REDUCEOPS_") and not is_known:
            known = ", ".join(listed)
            raise ImportError(f"customops: there is no variable {name}; there are {known}")
