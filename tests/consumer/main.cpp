// What a program of somebody else's needs of the package: headers, and a library to link.
#include <lamina/base/version.hpp>
#include <lamina/tensor/shape.hpp>

#include <cstdio>

int main() {
  const lamina::Shape shape{2, 3, 4, 5};
  std::printf("lamina %s: %s\n", lamina::version, shape.text().c_str());
  return shape.size() == 120 ? 0 : 1;
}
