"""The site: ``make docs`` builds it into ``site/`` without the network, and every warning is an error."""

import re
import sys
from pathlib import Path

from docutils import nodes

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

from gallery_times import record_cpu_time  # noqa: E402

from lowchurn import __version__  # noqa: E402

project = "lowchurn"
author = "the lowchurn developers"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "result_tables",
]
exclude_patterns = ["_extensions", "auto_examples/*.py.md5"]
templates_path = ["_templates"]
nitpicky = True
nitpick_ignore_regex = [
    # Types in docstrings are words, such as "array of shape (n,)" and names of other libraries.
    (r"py:.*", r".*"),
]
# The files of the gallery, of the API and of the tables are made again by every build.
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
autodoc_default_options = {"members": True}
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"__init__|huggingface_text",  # it needs a data set
    "within_subsection_order": "gallery_order.GalleryOrder",
    "abort_on_example_error": True,
    "plot_gallery": True,
    "download_all_examples": False,
    "reset_modules": ("matplotlib", record_cpu_time),
    "reset_modules_order": "both",
    "min_reported_time": 0,
    "show_memory": False,
    "write_computation_times": False,
    "copyfile_regex": r"",
}

html_theme = "pydata_sphinx_theme"
html_title = "lowchurn"
html_static_path = ["_static"]
html_css_files = ["lowchurn.css"]
html_js_files = [("calculator.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "lowchurn"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_prev_next": True,
    "use_edit_page_button": False,
    "secondary_sidebar_items": ["page-toc", "sg_download_links"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
WITHOUT_PAGES_BELOW = ("index", "get_started", "glossary", "design", "changelog", "citing", "contributing")
html_sidebars: dict[str, list[str]] = {page: [] for page in WITHOUT_PAGES_BELOW}


def skip_member(app, what, name, value, skip, options):
    """Leave out what scikit-learn adds to every estimator: ``set_fit_request`` and the like."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def keep_percents(app, doctree, name):
    """Keep a number and its % on one line."""
    for text in list(doctree.findall(nodes.Text)):
        if not isinstance(text.parent, nodes.literal | nodes.literal_block | nodes.raw):
            kept = re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text)
            if kept != text:
                text.parent.replace(text, nodes.Text(kept))


def setup(app):
    app.connect("autodoc-skip-member", skip_member)
    app.connect("doctree-resolved", keep_percents)
