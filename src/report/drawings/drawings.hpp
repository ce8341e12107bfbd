// Drawings: a profile as pictures in SVG, for the report's page and as files of their own.
//
// What a page can do with them: each mark of a row carries class="mark" with its kind
// ("bound-compute"), data-row="index in Profile::rows" and a <title>; with two profiles, marks of
// the first carry data-before in place of data-row. Marks of the communication roofline and of the
// timeline carry data-layer="index in the network", as they stand for a layer; those of the first
// of two profiles, data-layer-before. Those of the timeline that stand for several spans have them
// in data-parts="layer x width layer x width ...", in the drawing's pixels, and the pass in words
// in data-what; the group around them says in data-seconds how long the step is.
#pragma once

#include <lamina/profile/profile.hpp>

#include <string>

namespace lamina::detail {

struct DrawingOptions {
  /// A file of its own, which brings its style (light and dark) and its background. Else the page
  /// has drawing_style() once for all.
  bool standalone = false;
  /// The first of two profiles: marks of layers are its own, "data-layer-before".
  bool before = false;
};

/// FLOP/s over FLOP per byte, with every measured ceiling and a dot per row. With `other`, rows of
/// the same layer and pass are joined from `profile` (before) to `other` (after). Without ceilings,
/// dots alone.
std::string draw_roofline(const Profile& profile, const Profile* other, DrawingOptions options);

/// What each layer computes per byte on the wire, beside what the links can sustain. Empty where
/// nothing communicates.
std::string draw_communication(const Profile& profile, const Profile* other,
                               DrawingOptions options);

/// The last step: kernels, communication and waiting of each rank. Empty without a timeline.
std::string draw_timeline(const Profile& profile, DrawingOptions options);

/// Bytes per layer, largest first. Empty without memory.
std::string draw_memory(const Profile& profile, DrawingOptions options);

/// How many ranks trained, over the steps of the training. Empty where they did not change.
std::string draw_ranks(const Profile& profile, DrawingOptions options);

/// CSS of all drawings. Colours are custom properties of the root (--ink, --muted, --grid, --paper,
/// --compute, --memory, --communication, --overhead, --kernel, --forward, --input-grad,
/// --weight-grad, --update, --flag), which follow the system between light and dark;
/// data-theme="light" or "dark" on the root overrules it.
std::string drawing_style();

}  // namespace lamina::detail
