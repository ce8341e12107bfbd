// Checkpoints that stay beside the last one, so that a ruined run does not replace a good one:
// FILE.step-000120 is what FILE was at step 120, FILE.best what evaluated best.
#pragma once

#include <lamina/train/checkpoint.hpp>

#include <optional>
#include <string>

namespace lamina {

/// Before `path` is saved anew: what it holds becomes `path`.step-N, too, N being its step. It is
/// another name of the same file where the file system has such, otherwise a copy. Nothing is kept
/// of a file that is no checkpoint. On rank 0, whose errors all ranks throw. Collective.
void keep_checkpoint(const std::string& path, const Communicator& ranks = {});

/// When it has been saved: of all files `path`.step-N only the `keep` that were saved last stay.
void drop_checkpoints(const std::string& path, int keep, const Communicator& ranks = {});

/// "FILE.best"
inline std::string best_checkpoint(const std::string& path) { return path + ".best"; }

/// The setting of a best checkpoint, and of no other, that says how large the data set is on which
/// it reached its score.
inline constexpr const char* scored_images = "score.images";

/// The score to beat: that of the checkpoint at `path`, where there is one. Throws Error, on all
/// ranks, if it has none, was `validated` otherwise, or is of another model or of another number of
/// images (scored_images) than `mine` names: one does not compare with the other. What the file or
/// `mine` does not name is taken to be the same.
std::optional<Score> read_score(const std::string& path, bool validated, const Progress& mine,
                                const Communicator& ranks = {});

}  // namespace lamina
