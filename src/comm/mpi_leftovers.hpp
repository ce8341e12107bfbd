// What a killed job leaves behind: files of MPI in shared memory, and the launcher's folder. Each
// process notes what there is of its job in a file that it holds a lock on while it lives. A note
// without a lock is one of a dead process.
#pragma once

#include <string>

namespace lamina::detail {

/// The note of this process.
class JobNote {
 public:
  /// Removes what the notes of this user's dead processes name and no living one's does: files only
  /// that are the same still, the folder only if its launcher is gone. What cannot be removed
  /// stays.
  static void remove_leftovers();

  /// To be made when MPI runs. Where no note can be written, there is none.
  JobNote();
  JobNote(const JobNote&) = delete;
  JobNote& operator=(const JobNote&) = delete;
  ~JobNote();

 private:
  static void remove_in_turn();

  int lock_ = -1;
  std::string path_;
};

}  // namespace lamina::detail
