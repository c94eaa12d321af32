"""The style sheet of the page: wide and narrow screens, day and night, paper."""

from __future__ import annotations

from batchproof.report.theme import FONTS, variables

BASE = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 1.25rem 1rem 4rem; max-width: 62rem;
  background: var(--page); color: var(--ink); font: 16px/1.5 var(--sans); overflow-wrap: break-word;
}
h1 { font-size: 1.7rem; margin: .4rem 0 .6rem; }
h2 {
  font-size: 1.3rem; margin: 2.4rem 0 .6rem; padding-top: .8rem; border-top: 2px solid var(--grid);
}
h3 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
h4 { font-size: 1rem; margin: 0 0 .3rem; }
p { margin: .4rem 0; max-width: 46rem; }
ul { margin: .4rem 0; padding-left: 1.2rem; }
a { color: inherit; text-underline-offset: .15em; }
sup { line-height: 0; }
code {
  font: .88em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere;
}
nav ul, ul.plain { list-style: none; padding: 0; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1rem; }
ul.plain li { margin: .25rem 0; }
.faint, figcaption, .notes { color: var(--faint); font-size: .88rem; }
details { margin: .6rem 0; }
summary { cursor: pointer; font-weight: 600; }
dl {
  display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem;
  margin: .3rem 0; font-size: .88rem;
}
dt { color: var(--faint); }
dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
.chip {
  display: inline-block; padding: 0 .45rem; border: 1.5px solid currentColor; border-radius: 6px;
  font-size: .78rem; font-weight: 700; letter-spacing: .02em; white-space: nowrap;
}
.chip.none { color: var(--faint); }
.chip.good { color: var(--good); }
.chip.warn { color: var(--warn); }
.chip.bad { color: var(--bad); }
"""
FIGURES = """
figure {
  margin: .9rem 0; padding: .9rem; min-width: 0;
  background: var(--paper); border: 1px solid var(--grid); border-radius: 8px;
}
figure svg { display: block; width: 100%; height: auto; margin: 0 auto; stroke-linejoin: round; }
figure .box { overflow-x: auto; }
figure.middle svg { max-width: 35rem; }
figure.wide svg { min-width: 35rem; }
figcaption { margin-top: .5rem; max-width: 48rem; }
.grid {
  display: grid; gap: .9rem; margin: .9rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(17rem, 100%), 1fr));
}
.grid figure { margin: 0; }
.grid figure svg { max-width: 25rem; }
"""
TABLES = """
.scroll {
  overflow-x: auto; max-width: max-content; margin: .8rem 0;
  background: var(--paper); border: 1px solid var(--grid); border-radius: 8px;
}
table {
  border-collapse: separate; border-spacing: 0;
  font-size: .88rem; font-variant-numeric: tabular-nums;
}
th, td {
  padding: .28rem .7rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--grid);
}
thead th {
  border-top: 0; vertical-align: bottom;
  white-space: normal; overflow-wrap: anywhere; min-width: 6.4rem; max-width: 11rem;
}
th[scope=row], th[scope=rowgroup], thead th:first-child {
  position: sticky; left: 0; background: var(--paper);
  text-align: left; white-space: normal; min-width: 8.5rem; max-width: 16rem;
}
th[scope=row] { font-weight: 400; }
th[scope=rowgroup] { color: var(--faint); font-size: .8rem; padding-top: .8rem; }
td.none { color: var(--faint); }
td.warn { color: var(--warn); }
td.bad { color: var(--bad); font-weight: 700; }
.bar {
  display: inline-block; width: 6rem; height: .6rem; border-radius: 3px;
  background: var(--idle); outline: 1px solid var(--grid);
}
.bar i { display: block; height: 100%; border-radius: 3px; background: var(--s0); }
"""
NARROW = """
@media (max-width: 40rem) {
  body { padding: .8rem .8rem 3rem; }
  h1 { font-size: 1.4rem; }
  figure { padding: .6rem; }
  th[scope=row], th[scope=rowgroup], thead th:first-child { max-width: 10.5rem; }
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .3rem; }
}
"""
PAPER = """
@media print {
  body { max-width: none; background: #fff; font-size: 11pt; }
  nav { display: none; }
  figure, tr { break-inside: avoid; }
  h2, h3, h4 { break-after: avoid; }
  .scroll, figure .box { overflow: visible; }
  figure.wide svg { min-width: 0; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""
COLOURS = f"""
:root {{ color-scheme: light dark; --sans: {FONTS}; {variables(is_dark=False)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {variables(is_dark=True)} }} }}
@media print {{ :root {{ color-scheme: light; {variables(is_dark=False)} }} }}
"""
STYLE = COLOURS + BASE + FIGURES + TABLES + NARROW + PAPER
