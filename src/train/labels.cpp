// Where the labels are loaded and where they are wanted.
#include <lamina/train/labels.hpp>

namespace lamina {

Labels::Labels(const Network& network) {
  const PlaceOptions& o = network.placing();
  const int ranks = o.ranks.size();
  const auto me = std::size_t(o.ranks.rank());
  const auto rows = [&](const Split& split) {
    return Blocks::of({o.batch, 1, 1, 1}, split, Axis::batch, ranks);
  };
  const Blocks loaded = rows(o.splits[0]), wanted = rows(o.splits.back());
  loaded_ = Tensor(loaded.box[me].shape(), DType::i32);
  moves_ = !loaded.same(wanted);
  if (!moves_) return;
  exchange_ = Exchange(loaded, wanted, DType::i32, o.ranks);
  wanted_ = Tensor(wanted.box[me].shape(), DType::i32);
}

}  // namespace lamina
