# The first block of C++ that has a main().
/^```cpp/ { block = ""; inside = 1; next }
/^```/ && inside { inside = 0; if (block ~ /int main/) { printf "%s", block; exit } }
inside { block = block $0 "\n" }
