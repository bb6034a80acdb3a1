async function again() {
  try {
    const answer = await fetch("/now");
    if (answer.ok) show(await answer.text());
  } catch { document.getElementById("gone").hidden = false; return; }
  setTimeout(again, 2000);
}
function show(text) {   // curves stay as they are, zoomed and pointed at, as long as there are no new values
  const now = document.getElementById("now"), made = document.createElement("div"), data = node => node.querySelector(".charts > script")?.textContent;
  made.innerHTML = text;
  if (data(now) && data(now) === data(made)) made.querySelector("#curves").replaceWith(now.querySelector("#curves"));
  else blocks.length = 0;
  now.replaceChildren(...made.childNodes);
  start(now);
}
setTimeout(again, 2000);
