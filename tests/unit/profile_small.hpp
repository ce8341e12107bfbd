// A small network whose profile is known, and how to find its steps and rows.
#pragma once

#include <lamina/layers/conv2d.hpp>
#include <lamina/layers/flatten.hpp>
#include <lamina/layers/linear.hpp>
#include <lamina/layers/relu.hpp>
#include <lamina/layers/softmax_cross_entropy.hpp>
#include <lamina/profile/measure.hpp>

namespace lamina::test {

inline Network small() {
  Network net({.c = 3, .h = 8, .w = 8});
  net.add<Conv2D>({.channels = 4, .kernel = 3, .pad = 1}, "conv")
      .add<ReLU>({}, "relu")
      .add<Flatten>({}, "flat")
      .add<Linear>({.features = 5}, "fc")
      .add<SoftmaxCrossEntropy>({}, "loss");
  return net;
}

inline PlacedNetwork place(const Network& net, const Communicator& ranks = {},
                           double bucket_mb = 25) {
  PlacedNetwork placed = net.place({.batch = 4,
                                    .backend = reference_backend(),
                                    .ranks = ranks,
                                    .bucket_mb = bucket_mb,
                                    .first_bucket_mb = bucket_mb});
  placed.initialize(1);
  return placed;
}

inline int step_of(const PlacedNetwork& net, std::string_view name) {
  for (std::size_t i = 0; i < net.steps().size(); ++i)
    if (net.steps()[i].name == name) return int(i);
  throw Error(text("no step ", name));
}

/// Null if there is none.
inline const ProfileRow* find(const Profile& p, std::string_view name, Pass pass) {
  for (const ProfileRow& r : p.rows)
    if (r.name == name && r.pass == pass) return &r;
  return nullptr;
}
inline const ProfileRow& row(const Profile& p, std::string_view name, Pass pass) {
  const ProfileRow* r = find(p, name, pass);
  if (!r) throw Error(text("no row ", name, ' ', lamina::name(pass)));
  return *r;
}

}  // namespace lamina::test
