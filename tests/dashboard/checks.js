// What a page owes to everybody, measured inside it: contrast, names, order of headings, nothing that sticks out.
// Contrast as WCAG 2.2 (1.4.3, AA) has it; the background is that of the nearest opaque ancestor.

const numbers = (text) => text.match(/[\d.]+/g).map(Number);
const isInside = (e) => e.closest(".scroll, .log, .chart, .heat");

function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => (value <= 10.31 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function background(e) {
  for (let at = e; at; at = at.parentElement) {
    const found = numbers(getComputedStyle(at).backgroundColor);
    if (found.length < 4 || found[3] === 1) return found.slice(0, 3);
  }
  return [255, 255, 255];
}

function saysSomething(e) {
  const hasText = [...e.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
  return (hasText || e.matches("input:not([type=checkbox]), select")) && !e.closest("script, noscript, option");
}

function contrast() {
  const seen = [...document.querySelectorAll("body *")].filter((e) => saysSomething(e) && !e.disabled && e.checkVisibility() && !e.matches(".skip"));
  const faint = seen.flatMap((e) => {
    const style = getComputedStyle(e);
    const [darker, lighter] = [luminance(numbers(style.color).slice(0, 3)), luminance(background(e))].sort((x, y) => x - y);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (lighter + 0.05) / (darker + 0.05);
    return ratio < (isLarge ? 3 : 4.5) ? [`${e.tagName} ${e.id} ${e.className} "${e.textContent.trim().slice(0, 30)}": ${ratio.toFixed(2)}`] : [];
  });
  return { checked: seen.length, faint };
}

function isNamed(e) {
  const by = document.getElementById(e.getAttribute("aria-labelledby") ?? "");
  return e.ariaLabel || e.labels?.length || by?.textContent.trim() || (e.matches("button, a, summary") && e.textContent.trim());
}

const NEED_NAMES = "button, select, input, a, summary, progress, section, [role=img], [role=region], [role=log]";
const all = (selector) => [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility());
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);

return {
  ...contrast(),
  width: document.documentElement.scrollWidth,
  screen: innerWidth,
  sticksOut: all("body *").filter((e) => !isInside(e) && !e.matches(".skip") && e.getBoundingClientRect().right > innerWidth + 1)
    .map((e) => `${e.tagName} ${e.id} ${e.className}`).slice(0, 5),
  unnamed: all(NEED_NAMES).filter((e) => !isNamed(e)).map((e) => e.outerHTML.slice(0, 80)),
  tables: all("th:not([scope]):not(.u-legend th), table:not(.u-legend):not(:has(caption))").length,
  headings: all("h1, h2, h3, h4").map((e) => [Number(e.tagName[1]), e.textContent.trim()]),
  doubled: ids.filter((id, index) => ids.indexOf(id) < index),
  language: document.documentElement.lang,
};
