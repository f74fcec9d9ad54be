"""The HTML page of an attack study, as a Jinja template; its style sheet is the report's."""

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>cofal: attacks on what leaves a client</title>
<style>
{{ style | safe }}
.card {
  --paper: #ffffff; background: var(--paper); border: 1px solid var(--rule); border-radius: 10px; padding: 14px;
  overflow-x: auto;
}
.card img { display: block; width: 100%; min-width: 760px; height: auto; mix-blend-mode: multiply; }
@media screen and (prefers-color-scheme: dark) { .card { --paper: #dcdfe4; } }
.wrap th { white-space: normal; vertical-align: bottom; min-width: 74px; }
</style>
</head>
{% macro table(headings, rows) %}
<div class="scroll"><table class="wrap">
<thead><tr>
{% for heading in headings %}<th{% if not loop.first %} class="n"{% endif %}>{{ heading }}</th>{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr>{% for cell in row %}<td{% if not loop.first %} class="n"{% endif %}>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}
<body><main>
<p class="eyebrow"><span class="mark">cofal</span> · attacks on what leaves a client</p>
<h1>{{ finding }}</h1>
{% for paragraph in paragraphs %}<p class="lead">{{ paragraph }}</p>{% endfor %}
<section>
<h2>Accuracy against leakage</h2>
<p>Each point is one way to share. Further up, the labels picked make a better model; further left, an attacker learns
less. Differences in accuracy of a point or two are chance.</p>
<div class="card" tabindex="0" role="group" aria-label="Plot, scrolls sideways on narrow screens">
<img alt="Accuracy against leakage, one point for each way to share" src="data:image/png;base64,{{ plot }}">
</div>
</section>
<section>
<h2>Pictures rebuilt from what was sent</h2>
<p>The top row shows private images. Below is what a decoder, trained on other images of the same kind, makes of their
embeddings. For aggregates it is given the mean of the region that an image falls into; for 'nothing' it can only draw
what such images look like on average. A picture that shows the right class but not this very image gives away the
class, not the individual. Of the two kinds of noise only tangent is shown: with vmf of the same epsilon the pictures
differ by a hair.</p>
<div class="card" tabindex="0" role="group" aria-label="Pictures, scroll sideways on narrow screens">
<img alt="Private images and pictures rebuilt at each level" src="data:image/png;base64,{{ grid }}">
</div>
</section>
<section>
<h2>All figures</h2>
{{ table(*tables.levels) }}
{% for remark in remarks %}<p class="note">{{ remark }}</p>{% endfor %}
</section>
<section>
<h2>Membership from one release of regions</h2>
<p>{{ regions_text }}</p>
{{ table(*tables.regions) }}
</section>
<section>
<h2>How this was made</h2>
<p><code>{{ command }}</code></p>
<dl>{% for name, value in facts.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
</section>
</main></body>
</html>
"""
