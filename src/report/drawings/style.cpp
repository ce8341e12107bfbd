// The drawings' style sheet. Colours keep apart for colour-blind eyes (after Okabe and Ito), on
// white and on near black.
#include "drawings.hpp"

namespace lamina::detail {

std::string drawing_style() {
  const std::string light =
      "--paper:#fff;--ink:#1f2328;--muted:#59636e;--grid:#e6e9ed;--axis:#9aa4af;--roof:#3d4752;"
      "--compute:#0072b2;--memory:#e08a00;--communication:#b5478f;--overhead:#7d8590;"
      "--kernel:#009e73;"
      "--forward:#56b4e9;--recompute:#3d6fb4;--input-grad:#0f9d78;--weight-grad:#d9a514;"
      "--update:#8a93a0;"
      "--hidden:#2f7fbf;--hidden-most:#86b9dd;--hidden-part:#f0a868;--exposed:#d1430b;"
      "--flag:#c4161c;";
  const std::string dark =
      "--paper:#12161c;--ink:#e6edf3;--muted:#9aa5b1;--grid:#262d36;--axis:#5d6875;--roof:#b4bfca;"
      "--compute:#3d9fe0;--memory:#f0a030;--communication:#db74b6;--overhead:#8b949e;"
      "--kernel:#2fbf94;"
      "--forward:#8ccff5;--recompute:#5f8fd3;--input-grad:#1fae88;--weight-grad:#d8ab2b;"
      "--update:#8b949e;"
      "--hidden:#3f93d6;--hidden-most:#86b9dd;--hidden-part:#e8a467;--exposed:#f4652f;"
      "--flag:#ff5c5c;";
  return ":root{color-scheme:light dark;" + light + "}\n" +
         "@media screen and (prefers-color-scheme:dark){:root:not([data-theme=light]){" + dark +
         "}}\n:root[data-theme=light]{color-scheme:light}\n" +
         "@media screen{:root[data-theme=dark]{color-scheme:dark;" + dark + "}}\n" +
         R"(.drawing{display:block;max-width:100%;height:auto}
svg.drawing:root{height:100%}
.drawing text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
.drawing text{fill:var(--ink);font-variant-numeric:tabular-nums}
.drawing .muted,.drawing .tick{fill:var(--muted)}
.drawing .small{font-size:11px}
.drawing .strong{font-weight:600}
.drawing .end{text-anchor:end}
.drawing .middle{text-anchor:middle}
.drawing .paper{fill:var(--paper)}
.drawing .grid{stroke:var(--grid)}
.drawing .axis{stroke:var(--axis)}
.drawing .leader{stroke:var(--axis);stroke-width:.75;fill:none}
.drawing .roof{stroke:var(--roof);stroke-width:1;fill:none;opacity:.6}
.drawing .roof.main{stroke-width:2;opacity:1}
.drawing .roof.library{stroke-dasharray:5 4}
.drawing .roof-name{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
.drawing .roof-name{pointer-events:none}
.drawing .under-roof{fill:var(--roof);opacity:.04}
.drawing .mark{fill-opacity:.72;stroke:var(--paper);stroke-width:.75;cursor:pointer}
.drawing .key{fill:var(--muted)}
.drawing .bound-compute{fill:var(--compute)}
.drawing .bound-memory{fill:var(--memory)}
.drawing .bound-communication{fill:var(--communication)}
.drawing .bound-overhead{fill:var(--overhead)}
.drawing .bound-kernel{fill:var(--kernel)}
.drawing .pass-forward{fill:var(--forward)}
.drawing .pass-input_grad{fill:var(--input-grad)}
.drawing .pass-recompute{fill:var(--recompute)}
.drawing .pass-weight_grad{fill:var(--weight-grad)}
.drawing .pass-update{fill:var(--update)}
.drawing .lane-communication{fill:var(--communication)}
.drawing .hidden-all{fill:var(--hidden)}
.drawing .hidden-most{fill:var(--hidden-most)}
.drawing .hidden-part{fill:var(--hidden-part)}
.drawing .hidden-little{fill:var(--exposed)}
.drawing .above{stroke:var(--roof);stroke-width:1}
.drawing .above.unexplained{stroke:var(--flag);stroke-width:2}
.drawing .before{fill-opacity:.2;stroke:var(--muted);stroke-opacity:.6}
.drawing .joined{stroke:var(--muted);stroke-width:1;opacity:.5;pointer-events:none}
.drawing .mark:hover,.drawing .mark.selected{fill-opacity:1;stroke:var(--ink);stroke-width:2}
.drawing .dot-name{paint-order:stroke;stroke:var(--paper);stroke-width:3px;pointer-events:none}
.drawing .span{cursor:pointer}
.drawing .span:hover,.drawing .span.selected{stroke:var(--ink);stroke-width:1.5}
.drawing .box-name{fill:#111;font-size:11px;pointer-events:none}
.drawing .on-communication{fill:var(--paper)}
.drawing .lane{fill:var(--grid);opacity:.5}
.drawing .wait{stroke:var(--exposed);stroke-width:.75}
.drawing .hatch{stroke:var(--exposed);stroke-width:2.5}
.drawing .hatch-paper{fill:var(--paper);opacity:.55}
.drawing .tear{stroke:var(--paper);stroke-width:2.5}
.drawing .holds-parameters{fill:var(--compute)}
.drawing .holds-gradients{fill:var(--forward)}
.drawing .holds-optimizer{fill:var(--input-grad)}
.drawing .holds-activations{fill:var(--memory)}
.drawing .holds-workspace{fill:var(--overhead)}
.drawing .holds-messages{fill:var(--communication)}
)";
}

}  // namespace lamina::detail
