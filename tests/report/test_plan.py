from __future__ import annotations

import numpy as np

from headwater.measure.epochplan import EpochPlan, SitePlan
from headwater.measure.logbook import Amounts
from headwater.report.plan import plan_chapter
from logbooks import SLOW_LINK, empty_logbook


def test_a_row_for_every_store_and_words_for_every_way_that_is_used() -> None:
    logbook = empty_logbook()
    plan = EpochPlan(logbook.key, seed=3, epoch=4, samples=9)
    for number, site in enumerate(("a", "b")):
        before, after = Amounts(2, 3e6, 0, 1, 12.5), Amounts(2, 1e6, 0.25, 1, 5)
        part = SitePlan(site, before, after, SLOW_LINK, f"because of {site}")
        plan.add(part, np.arange(2) + 2 * number, np.uint8([0, 3]))
    chapter = plan_chapter(logbook, plan)
    assert chapter.title == "The plan of epoch 4"
    assert chapter.table is not None
    assert chapter.table.rows[1] == ("b", "2", "3.00 MB", "1.00 MB", "12.50 s", "5.00 s", "0.25 s")
    assert "4 of 9 samples were planned." in chapter.text
    assert "file: 2; after resize: 2." in chapter.text
    assert "a, at last: because of a." in chapter.text


def test_an_epoch_in_which_nothing_was_planned() -> None:
    logbook = empty_logbook()
    chapter = plan_chapter(logbook, EpochPlan(logbook.key, seed=3, epoch=0, samples=1000))
    assert chapter.text == "0 of 1,000 samples were planned."
    assert chapter.table is not None
    assert chapter.table.rows == ()
