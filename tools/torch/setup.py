"""Builds the wheel; `./dev wheel` calls it, with the version in TARPON_VERSION.

The wheel holds libtarpon.so.0, so that it is of one platform, and works with any Python 3.
"""

import os

from setuptools import setup

setup(
    name="tarpon-torch",
    version=os.environ["TARPON_VERSION"],
    description="AllReduce in bounded time on ordinary Ethernet, for PyTorch",
    license="Apache-2.0",
    packages=["tarpon_torch"],
    package_data={"tarpon_torch": ["py.typed", "libtarpon.so.0"]},
    python_requires=">=3.9",
    zip_safe=False,
    options={"bdist_wheel": {"python_tag": "py3", "plat_name": "linux_x86_64"}},
)
