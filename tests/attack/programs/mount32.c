/* mount(2) through the 32-bit gate: refused by its 64-bit number, it is another number here. */
#include <stdio.h>

int main(void)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(21L), "b"(0L), "c"(0L), "d"(0L), "S"(0L), "D"(0L) : "memory");
    printf("%ld\n", -result);
    return 0;
}
