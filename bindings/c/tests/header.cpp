// Both headers as C++, and a link against the library from it.
#include <undraft_ops.h>

#include <cstdio>
#include <cstring>

int main() {
    undraft_gdn_sizes sizes = undraft_gdn_sizes_init();
    const undraft_gdn_dims dims = undraft_gdn_dims_init(16, 48, 128, 128, 4);
    char *message = nullptr;
    if (undraft_gdn_get_sizes(&dims, UNDRAFT_F32, &sizes, &message) != UNDRAFT_OK || sizes.log_bytes != 32960) return 1;
    if (undraft_gdn_get_sizes(nullptr, UNDRAFT_F32, &sizes, &message) != UNDRAFT_INVALID_ARGUMENT) return 1;
    if (std::strcmp(message, "`dims` is NULL, expected 1 elements") != 0) return 1;
    undraft_string_free(message);
    std::puts("header: ok");
    return 0;
}
