"""What a user says about an image set: where it is, in which format, and how much of it to take."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class DataSettings(BaseModel):
    """The `[data]` table of a configuration; docs/data.md explains each format."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Literal["digits", "parquet", "cifar", "idx", "folder", "npz"] = "digits"
    path: str = Field("", description="the file or folder to read; digits needs none")
    test_path: str = Field("", description="the test split, where it is not found beside `path`")
    test_share: float = Field(
        0.2, gt=0, lt=1, description="share held out, by class, when the source has no test split"
    )
    limit: int | None = Field(None, ge=1, description="take this many training images, classes in proportion")
    test_limit: int | None = Field(None, ge=1, description="take this many test images, classes in proportion")
    image_size: int | None = Field(
        None, ge=1, le=4096, description="scale the shorter side to this and crop the centre"
    )
    class_list: str = Field("", description="a file with one class per line: keep these, in this order")
    column: str = Field("", description="what says which site an image belongs to, for the by-column split")
    image_column: str = Field("", description="parquet: the image column, where its name is unusual")
    label_column: str = Field("", description='parquet: the label column, or "none" for unlabelled images')
    skip_bad: bool = Field(False, description="leave broken images out and count them, instead of stopping")
    seed: int = Field(0, description="decides the held-out share and what `limit` takes")
