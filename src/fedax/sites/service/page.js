async function again() {
  try {
    const answer = await fetch("/now");
    if (answer.ok) document.getElementById("now").innerHTML = await answer.text();
  } catch { document.getElementById("gone").hidden = false; return; }
  setTimeout(again, 2000);
}
setTimeout(again, 2000);
