"""The audit as a page: one self-contained HTML file."""

from lowchurn.report._page import html_page, write_html

__all__ = ["html_page", "write_html"]
