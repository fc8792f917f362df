"""Plots, contact sheets and the HTML report. Values come in, text goes out; nothing is measured here."""

from headwater.report.page import Chapter, Figure, Picture, Sheet, Table, render_page, write_page

__all__ = ["Chapter", "Figure", "Picture", "Sheet", "Table", "render_page", "write_page"]
