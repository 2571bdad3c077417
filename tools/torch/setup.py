"""Builds the wheel; `./dev wheel` calls it, with the version in TARPON_VERSION.

The wheel holds libtarpon.so.0, so that it is of one platform, and works with any Python 3.
"""

import os
import pathlib

from setuptools import setup

setup(
    name="tarpon-torch",
    version=os.environ["TARPON_VERSION"],
    description="Collectives in bounded time on ordinary Ethernet, for PyTorch",
    long_description=pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
    ],
    packages=["tarpon_torch"],
    package_data={"tarpon_torch": ["py.typed", "libtarpon.so.0"]},
    python_requires=">=3.9",
    install_requires=["torch>=1.13.0a0", "numpy"],  # Debian 12 calls its PyTorch 1.13.0a0
    zip_safe=False,
    options={"bdist_wheel": {"python_tag": "py3", "plat_name": "linux_x86_64"}},
)
