"""The files of the live page.

`uPlot.iife.min.js`, `uPlot.min.css` and `uPlot.LICENSE` are unchanged from uPlot 1.6.32 (MIT), by
`npm pack uplot@1.6.32`.
"""
