//! What a script finds on a page that people with other screens or eyes would stumble over.
//!
//! Each gives a list of complaints, empty where all is well, or what was looked at if that is
//! less than a page has.

/// Text whose contrast with what is behind it is less than 4.5 (WCAG 2.2, 1.4.3), with its
/// ratio. Placeholders and what canvases write count as text.
pub(crate) const FAINT: &str = r#"
const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
const light = (colour) => {
  const [r, g, b] = numbers(colour).slice(0, 3).map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if ((numbers(colour)[3] ?? 1) === 1) return colour;
  }
  return "rgb(255 255 255)";
};
const ratio = (colour, element) => {
  const [a, b] = [light(colour), light(behind(element))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (!node.data.trim() || element.closest("option, script, noscript") || !element.checkVisibility()) continue;
  found.push([node.data.trim().slice(0, 40), ratio(getComputedStyle(element).color, element)]);
}
for (const field of document.querySelectorAll("[placeholder]")) {
  if (!field.checkVisibility()) continue;
  found.push([field.placeholder, ratio(getComputedStyle(field, "::placeholder").color, field)]);
}
for (const canvas of document.querySelectorAll("canvas")) {
  found.push([canvas.id || "canvas", ratio(getComputedStyle(canvas).color, canvas)]);
}
if (found.length < 40) return found;
return found.filter(([, ratio]) => ratio < 4.5);
"#;

/// What is wider than the screen, but for what scrolls in a box of its own; and the screen and
/// the document if they are not equally wide.
pub(crate) const WIDER: &str = r#"
const wide = screen.width;
const found = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility()
  && !one.parentElement.closest(".wide") && one.getBoundingClientRect().right > wide + 0.5);
const names = found.map((one) => `${one.tagName} ${one.id} ${Math.round(one.getBoundingClientRect().right)}`);
const whole = [innerWidth, document.scrollingElement.scrollWidth, document.body.scrollWidth];
if (whole.some((width) => width !== wide)) names.push(`the document: ${whole}`);
return names;
"#;

/// Buttons, titles and labels whose text is cut off, and boxes that lie over one another.
pub(crate) const CROWDED: &str = r#"
const cut = [...document.querySelectorAll("button, h1, h2, h3, label, .legend li, p, figcaption, nav a")]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline")
  .map((one) => `cut: ${one.textContent.slice(0, 40)}`);
const boxes = [...document.querySelectorAll("main > section")].map((one) => [one.id, one.getBoundingClientRect()]);
const over = boxes.flatMap(([a, one], at) => boxes.slice(at + 1)
  .filter(([, two]) => one.left < two.right && two.left < one.right && one.top < two.bottom && two.top < one.bottom)
  .map(([b]) => `${a} over ${b}`));
return [...cut, ...over];
"#;
