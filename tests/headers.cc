// Nothing: the program whose precompiled headers all tests share.
int main() {}
