"""`check`: a framework's configuration before it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from computeflow.answers.answer import PROBLEMS, Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, Quantity, open_catalog, read_quantity
from computeflow.answers.predictions import prediction_data
from computeflow.answers.requests import JobRequest, choose_cluster, read_request, reading_data
from computeflow.planning.exports.config_formats import ConfigReading, Setup
from computeflow.planning.exports.framework_space import FrameworkSpace, switchable
from computeflow.planning.review import Review, review
from computeflow.views.reviews import review_headline, review_tables
from computeflow.views.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckAnswer(Answer):
    request: JobRequest
    reading: ConfigReading
    review: Review
    price: float | None
    """Dollars for a GPU-hour."""

    @property
    def exit_code(self) -> int:
        return PROBLEMS if self.review.remarks else 0

    def _data(self) -> dict[str, Any]:
        prediction = self.review.prediction
        return {
            "schema": "computeflow.check/1",
            "layout": asdict(self.request.layout),
            "prediction": None if prediction is None else prediction_data(prediction),
            "remarks": [asdict(remark) for remark in self.review.remarks],
            **reading_data(self.reading),
        }

    @property
    def headline(self) -> str:
        request = self.request
        return review_headline(request.job, request.layout, self.review, self.price)

    @property
    def title(self) -> str:
        return f"{self.request.job.model.name}, checked as {self.reading.format}"

    def tables(self) -> list[Table]:
        request = self.request
        return review_tables(request.job, request.layout, self.reading, self.review, self.price)


@checked
def check(
    file: File,
    *,
    on: str,
    storage: str | None = None,
    format: str | None = None,
    model: str | None = None,
    global_batch: int | None = None,
    seq_len: int | None = None,
    stack: str | None = None,
    price: Quantity | None = None,
    catalog: CatalogFiles = (),
) -> CheckAnswer:
    """Read a framework's configuration, predict its step, and list problems and better layouts."""
    facts = open_catalog(catalog)
    cluster = choose_cluster(on, storage, facts)
    options = {"global_batch": global_batch, "seq_len": seq_len}
    request = read_request(model, cluster, facts, options, from_=file, format=format, stack=stack)
    reading, used = request.reading, request.stack
    assert reading is not None and used is not None
    setup = Setup(job=request.job, cluster=cluster, layout=request.layout, stack=used)
    terms = FrameworkSpace(reading.format, setup, {} if stack else switchable(reading))
    return CheckAnswer(
        request=request,
        reading=reading,
        review=review(request.job, cluster, request.layout, used, terms, reading.timeouts),
        price=read_quantity(price, "usd"),
    )
