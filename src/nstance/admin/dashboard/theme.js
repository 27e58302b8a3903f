// Before the first paint, so that nothing flashes: the theme that the person has chosen, or the system's.
(function () {
  var chosen = null;
  try {
    chosen = localStorage.getItem("nstance-theme");
  } catch (problem) {
    chosen = null; // storage is off
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
