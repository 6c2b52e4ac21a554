// SPDX-License-Identifier: Apache-2.0
// Runs before the first paint, so that a chosen theme does not flash.
try {
  const chosen = localStorage.getItem('sluice-theme');
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
} catch { /* storage is blocked: the system's theme it is */ }
