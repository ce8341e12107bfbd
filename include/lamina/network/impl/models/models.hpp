// The models by name.
#pragma once

#include <lamina/base/inline.hpp>
#include <lamina/base/nearest.hpp>
#include <lamina/network/models.hpp>

namespace lamina {

namespace detail {

struct Model {
  std::string_view name;
  Network (*make)(const ModelOptions&);
};

inline constexpr Model models[] = {
    {"lenet", lenet},         {"alexnet", alexnet},     {"vgg11", vgg11},
    {"vgg13", vgg13},         {"vgg16", vgg16},         {"vgg19", vgg19},
    {"resnet18", resnet18},   {"resnet34", resnet34},   {"resnet50", resnet50},
    {"resnet101", resnet101}, {"resnet152", resnet152}, {"resnet20", resnet20},
    {"resnet56", resnet56},
};

}  // namespace detail

LAMINA_INLINE std::vector<std::string_view> model_names() {
  std::vector<std::string_view> names;
  for (const auto& model : detail::models) names.push_back(model.name);
  return names;
}

LAMINA_INLINE Network make_model(std::string_view name, const ModelOptions& options) {
  for (const auto& model : detail::models)
    if (model.name == name) return model.make(options);
  const auto names = model_names();
  throw Error(text("model '", name, "' is not known", suggestion(name, names), ": expected one of ",
                   in_words(names)));
}

}  // namespace lamina
