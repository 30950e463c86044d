// Before the first drawing: light or dark as the reader chose last, or as the system says.
{
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
