// Lines: rows of a profile that are told together, in the table, on the page, or in words.
#pragma once

#include <lamina/profile/roofline.hpp>
#include <lamina/profile/table.hpp>

#include <string>
#include <vector>

namespace lamina::detail {

/// Of `comm` seconds, those that nobody waited for: behind kernels. For sums over rows: a row may
/// wait for a collective that another one started.
double hidden(double comm, double late, double transfer);

/// A pass, a layer with its passes, a group, or the rest: rows of a profile, whose numbers add up.
struct Line {
  std::string name;
  std::vector<const ProfileRow*> rows;  // at least one
  Roof roof = {};                       // of all rows, where there are ceilings

  const ProfileRow& first() const { return *rows[0]; }
  int layers() const;
  /// What all layers have in common, of the first pass; empty if they differ.
  std::string shared(std::string ProfileRow::*words) const;

  template <class Of>
  double sum(Of of) const {
    double s = 0;
    for (const ProfileRow* r : rows) s += of(*r);
    return s;
  }
  double seconds() const {
    return sum([](const ProfileRow& r) { return r.seconds(); });
  }
  double time() const {
    return sum([](const ProfileRow& r) { return r.time.mean; });
  }
  double comm() const {
    return sum([](const ProfileRow& r) { return r.comm.mean; });
  }
  double exposed() const {
    return sum([](const ProfileRow& r) { return r.exposed.mean; });
  }
  /// Of `exposed`: while ranks had not come, and while bytes moved; the rest went into handing over
  /// and waking up.
  double late() const {
    return sum([](const ProfileRow& r) { return r.late.mean; });
  }
  double transfer() const {
    return sum([](const ProfileRow& r) { return r.transfer.mean; });
  }
  /// Of `comm`, behind kernels.
  double hidden() const;
  /// Time without communication, where it was measured, and how many times as long kernels take
  /// with it: 1 where they take no longer, since nothing gets faster by it.
  double alone() const {
    return sum([](const ProfileRow& r) { return r.alone.mean; });
  }
  double slowdown() const;
  /// The slowest rank's time over the mean; 0 without kernels.
  double imbalance() const;
  Work work() const;
  /// What processors counted, where `of` was counted in all rows that have any counts; else 0.
  double counted(double Counts::*of) const;
};

/// One per layer, type or stage (and pass), in the profile's order. Work outside of layers belongs
/// to no group, and so do the samples that come in: they go by their names.
std::vector<Line> lines_of(const Profile& profile, TableOptions::Group by, bool per_pass = false);

/// `others` as one, with the roof of them all.
Line sum_of(const Profile& profile, std::string name, const std::vector<Line>& others);

/// Whether layers are cut in unlike ways, so that it matters to see in which.
bool has_unlike_splits(const Profile& profile);

/// By wasted time, else by time; the largest first.
std::vector<Line> largest_first(std::vector<Line> lines);

}  // namespace lamina::detail
